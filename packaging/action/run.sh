#!/usr/bin/env bash
# Runs one prompt on a runner of GitHub Actions. Inputs are in the environment, never in the text of a command: a prompt may contain
# what strangers wrote.
set -euo pipefail

fail() { printf '::error::%s\n' "$1" >&2; exit 1; }

# Files of this run only: no settings, sessions or logins of an earlier one on the same machine.
EPITOME_HOME=$(mktemp -d "$RUNNER_TEMP/epitome-home.XXXXXX")
export EPITOME_HOME
input=/dev/null
if [ -n "$INPUT_FILE" ]; then
  [ -f "$INPUT_FILE" ] || fail "the input input-file names no file: $INPUT_FILE"
  input=$(realpath "$INPUT_FILE")
fi
cd "$INPUT_WORKING_DIRECTORY" || fail "the input working-directory names no directory: $INPUT_WORKING_DIRECTORY"

case $INPUT_MODE in
  # It runs no commands.
  read_only) ;;
  auto)
    # Ubuntu's runners don't let programs create the namespaces that the sandbox needs.
    if [ -e /proc/sys/kernel/apparmor_restrict_unprivileged_userns ]; then
      sudo -n sysctl -q -w kernel.apparmor_restrict_unprivileged_userns=0 || true
    fi
    "$EPITOME" doctor --json | jq -e '[.lines[] | select(.area == "sandbox")] | length > 0 and all(.status == "ok")' >/dev/null ||
      fail "the sandbox is not complete on this runner, so the mode auto is refused (epitome doctor shows what is missing)"
    ;;
  *) fail "the input mode must be read_only or auto, and not $INPUT_MODE" ;;
esac

arguments=(run --standalone --no-hooks --output json --mode "$INPUT_MODE" --model "$INPUT_MODEL")
arguments+=(--max-cost "$INPUT_MAX_COST" --max-rounds "$INPUT_MAX_ROUNDS")
[ -z "$INPUT_RECIPE" ] || arguments+=(--recipe "$INPUT_RECIPE")
[ -z "$INPUT_JSON_SCHEMA" ] || arguments+=(--json-schema "$INPUT_JSON_SCHEMA")
while IFS= read -r rule; do
  [ -z "$rule" ] || arguments+=(--allow "$rule")
done <<<"$INPUT_ALLOW"
[ -z "$INPUT_PROMPT" ] || arguments+=(-- "$INPUT_PROMPT")

# What the runner gives to actions could be used to change later steps or to write to the repository.
code=0
result=$(env -u GITHUB_TOKEN -u GH_TOKEN -u ACTIONS_RUNTIME_TOKEN -u ACTIONS_ID_TOKEN_REQUEST_TOKEN -u GITHUB_ENV -u GITHUB_PATH \
  -u GITHUB_OUTPUT -u GITHUB_STATE -u GITHUB_STEP_SUMMARY "$EPITOME" "${arguments[@]}" <"$input") || code=$?

# Values may have several lines. Nobody can guess the delimiter, so none of them can add another output.
delimiter=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
output() { printf '%s<<%s\n%s\n%s\n' "$1" "$delimiter" "$2" "$delimiter" >>"$GITHUB_OUTPUT"; }
field() { jq -r "$1 // empty" <<<"$result"; }
if [ -n "$result" ]; then
  output text "$(field .text)"
  output structured-output "$(jq -c '.structured_output // empty' <<<"$result")"
  output reason "$(field .reason)"
  output cost "$(field .cost)"
  output session "$(field .session)"
fi
case $code in
  0) ;;
  3) fail "the budget of $INPUT_MAX_COST dollars is used up" ;;
  *) fail "epitome ended with exit code $code" ;;
esac
