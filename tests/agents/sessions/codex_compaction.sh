# Codex CLI with a limit so low that it must compact.
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<END
model = "solver"
model_provider = "hone"
web_search = "disabled"
model_auto_compact_token_limit = 6000
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.hone]
name = "Hone"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
yes "hello from the file" | head -n 900 > greeting.txt
codex exec --skip-git-repo-check --sandbox workspace-write \
  "Read greeting.txt and write what it says, in capitals, to answer.txt."
