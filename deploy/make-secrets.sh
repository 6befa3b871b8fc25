#!/bin/sh
# Makes the secrets of compose.yml, each a file that exists once and is never overwritten. The two keys of Hone itself
# (trainer_key, metrics_key) are made by a gateway that runs; until then their files are empty.
set -eu
folder="${1:-$(dirname "$0")/secrets}"
mkdir -p "$folder"
put() {
    [ -e "$folder/$1" ] || printf '%s' "$2" >"$folder/$1"
}
random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}
for name in engine_key redis_password postgres_password grafana_password; do
    put "$name" "$(random)"
done
put redis_url "redis://:$(cat "$folder/redis_password")@redis:6379/0"
put database_url "postgresql://hone:$(cat "$folder/postgres_password")@postgres:5432/hone"
put trainer_key ""
put metrics_key ""
# Containers read them as users of their own, so the files are readable; the folder around them is not entered by others.
chmod 0644 "$folder"/*
chmod 0711 "$folder"
