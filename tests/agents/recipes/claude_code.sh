# Claude Code: base URL and key are in the environment already; its telemetry and updates are switched off.
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_TELEMETRY=1 DISABLE_ERROR_REPORTING=1 DISABLE_AUTOUPDATER=1
claude --print "Read greeting.txt and write what it says, in capitals, to answer.txt." --allowedTools Read Write
