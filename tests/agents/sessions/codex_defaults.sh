# Codex CLI as it comes, but for its provider.
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<END
model = "solver"
model_provider = "hone"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.hone]
name = "Hone"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
codex exec --skip-git-repo-check --sandbox workspace-write \
  "Read greeting.txt and write what it says, in capitals, to answer.txt."
