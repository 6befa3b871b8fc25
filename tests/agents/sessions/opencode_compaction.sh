# OpenCode with a context so small that it must compact: what it keeps of a conversation comes from a call of its own.
cat > ~/opencode.json <<END
{
  "model": "hone/solver", "share": "disabled", "autoupdate": false,
  "provider": {"hone": {
    "npm": "@ai-sdk/openai-compatible", "name": "Hone",
    "options": {"baseURL": "$OPENAI_BASE_URL", "apiKey": "{env:OPENAI_API_KEY}"},
    "models": {"solver": {"name": "solver", "limit": {"context": 6000, "output": 1000}}}
  }}
}
END
export OPENCODE_CONFIG=~/opencode.json OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1
export OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_DEFAULT_PLUGINS=1
yes "hello from the file" | head -n 400 > greeting.txt
opencode run "Read greeting.txt and write what it says, in capitals, to answer.txt."
