# Qwen Code: base URL and key are in the environment already; usage statistics and updates are switched off.
mkdir -p ~/.qwen
cat > ~/.qwen/settings.json <<END
{
  "telemetry": {"enabled": false}, "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false}, "model": {"name": "solver"}
}
END
qwen --auth-type openai --approval-mode yolo "Read greeting.txt and write what it says, in capitals, to answer.txt."
