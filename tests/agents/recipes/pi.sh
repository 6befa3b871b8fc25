# pi (@mariozechner/pi-coding-agent): a provider of its own in ~/.pi/agent/models.json.
# PI_OFFLINE=1 keeps it from looking for updates; PI_TELEMETRY=0 is its own switch.
mkdir -p ~/.pi/agent
cat > ~/.pi/agent/models.json <<END
{"providers": {"hone": {
  "baseUrl": "$OPENAI_BASE_URL", "api": "openai-completions", "apiKey": "OPENAI_API_KEY",
  "models": [{"id": "solver", "contextWindow": 128000, "maxTokens": 4096}]
}}}
END
export PI_OFFLINE=1 PI_TELEMETRY=0
pi --print --provider hone --model solver \
  "Read greeting.txt and write what it says, in capitals, to answer.txt."
