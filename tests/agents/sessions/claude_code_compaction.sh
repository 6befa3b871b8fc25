# Claude Code, told to compact between two prompts.
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1
claude --print "Read greeting.txt." --allowedTools Read Write
claude --print --continue "/compact"
claude --print --continue "Write what it says, in capitals, to answer.txt." --allowedTools Read Write
