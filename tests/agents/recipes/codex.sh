# Codex CLI: a provider of its own in config.toml, which speaks Responses. Web search is off, as only OpenAI's servers
# can run it, and so are analytics and the look for updates.
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<END
model = "solver"
model_provider = "hone"
web_search = "disabled"
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
