//! Settings files as they occur in users' projects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use epitome::hooks::claude::command_line::files_named;
use epitome::hooks::claude::tools::{files_of_patch, to_claude_input, to_our_input};
use epitome::hooks::claude::{disables_all, matches, parse};
use epitome::hooks::digest::hash_hook;
use epitome::hooks::event::HookEvent;
use epitome::hooks::hook::{FailMode, Hook, HookKind, HookOrigin};
use epitome::hooks::hook_context::CompactTrigger;
use epitome::problem::Problem;
use serde_json::{Value, json};

use super::moments::*;

const SETTINGS: &str = "/w/app/.claude/settings.json";

fn read(text: &str) -> (Vec<Hook>, Vec<Problem>) {
    parse(Path::new(SETTINGS), text, HookOrigin::Repository, Path::new("/w/app"))
}

fn well(text: &str) -> Vec<Hook> {
    let (hooks, problems) = read(text);
    assert_eq!(problems, []);
    hooks
}

/// One hook for an event, with a matcher.
fn hook(event: &str, matcher: &str) -> Hook {
    with(event, matcher, json!({"type": "command", "command": "./check.sh"}))
}

fn with(event: &str, matcher: &str, command: Value) -> Hook {
    let settings = json!({"hooks": {event: [{"matcher": matcher, "hooks": [command]}]}});
    well(&settings.to_string()).pop().expect("one hook")
}

fn line(hook: &Hook) -> &str {
    let HookKind::Claude { line, .. } = &hook.kind else { panic!("not a Claude Code hook: {hook:?}") };
    line
}

/// A guard for commands, a formatter for edits, and a note at session start, as shared by a team.
const TEAM: &str = r#"{
  "permissions": {"allow": ["Bash(make:*)"]},
  "hooks": {
    "PreToolUse": [
      {
        "matcher": "Bash",
        "hooks": [
          {"type": "command", "command": "\"$CLAUDE_PROJECT_DIR\"/.claude/hooks/guard.py", "timeout": 5},
          {"type": "command", "command": "jq -r .tool_input.command >> ~/commands.log"}
        ]
      }
    ],
    "PostToolUse": [
      {
        "matcher": "Edit|MultiEdit|Write",
        "hooks": [
          {"type": "command", "command": "jq -r .tool_input.file_path | xargs rustfmt", "statusMessage": "Formatting"}
        ]
      }
    ],
    "SessionStart": [{"hooks": [{"type": "command", "command": "cat NOTES.md"}]}]
  }
}"#;

#[test]
fn a_typical_settings_file_is_parsed() {
    let hooks = well(TEAM);
    let shown: Vec<(&str, &str, u64)> =
        hooks.iter().map(|hook| (hook.name.as_str(), line(hook), hook.manifest.timeout.as_secs())).collect();
    assert_eq!(
        shown,
        [
            (
                "PostToolUse[Edit|MultiEdit|Write]#1@.claude/settings.json",
                "jq -r .tool_input.file_path | xargs rustfmt",
                600
            ),
            (
                "PreToolUse[Bash]#1@.claude/settings.json",
                r#""$CLAUDE_PROJECT_DIR"/.claude/hooks/guard.py"#,
                5
            ),
            ("PreToolUse[Bash]#2@.claude/settings.json", "jq -r .tool_input.command >> ~/commands.log", 600),
            ("SessionStart#1@.claude/settings.json", "cat NOTES.md", 600),
        ]
    );
    assert_eq!(hooks[0].events, [(HookEvent::AfterToolCall, "PostToolUse".to_owned())]);
    assert!(hooks.iter().all(|hook| hook.origin == HookOrigin::Repository && hook.manifest.transcript));
}

#[test]
fn hooks_of_one_matcher_form_a_group() {
    let groups: Vec<usize> = well(TEAM)
        .iter()
        .map(|hook| match &hook.kind {
            HookKind::Claude { group, .. } => *group,
            HookKind::Script { .. }
            | HookKind::Resident { .. }
            | HookKind::Declared { .. }
            | HookKind::Webhook { .. } => {
                panic!("not a Claude Code hook: {hook:?}")
            }
        })
        .collect();
    assert_eq!(groups[1], groups[2]);
    assert_ne!(groups[0], groups[1]);
    assert_ne!(groups[2], groups[3]);
}

#[test]
fn the_same_hook_in_two_files_has_two_names() {
    let text = r#"{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}"#;
    let project = Path::new("/w/app");
    let files = [
        ("/w/app/.claude/settings.json", HookOrigin::Repository, "Stop#1@.claude/settings.json"),
        ("/w/app/.claude/settings.local.json", HookOrigin::Repository, "Stop#1@.claude/settings.local.json"),
        ("/home/ann/.claude/settings.json", HookOrigin::User, "Stop#1@~/.claude/settings.json"),
    ];
    for (path, place, name) in files {
        assert_eq!(parse(Path::new(path), text, place, project).0[0].name, name);
    }
}

#[test]
fn settings_without_hooks_yield_none() {
    for text in ["", "\u{feff}{}", r#"{"model": "opus"}"#, r#"{"hooks": {}}"#, r#"{"hooks": {"Stop": []}}"#] {
        assert_eq!(well(text), []);
    }
}

#[test]
fn disable_all_hooks_disables_all_hooks() {
    let text = TEAM.replacen('{', r#"{"disableAllHooks": true, "#, 1);
    assert!(disables_all(&text) && !disables_all(TEAM) && !disables_all("{"));
    assert_eq!(well(&text), []);
}

#[test]
fn arguments_of_a_program_are_quoted_for_the_shell() {
    let command = json!({"type": "command", "command": "node", "args": ["${CLAUDE_PROJECT_DIR}/a b.js", "it's", "$HOME"]});
    assert_eq!(
        line(&with("Stop", "", command)),
        r#"'node' ''"${CLAUDE_PROJECT_DIR}"'/a b.js' 'it'\''s' '$HOME'"#
    );
    // The variables of plugins stayed as they were, and no script of such a plugin was found.
    let command =
        json!({"type": "command", "command": "${CLAUDE_PLUGIN_ROOT}/run", "args": ["${CLAUDE_PLUGIN_DATA}"]});
    assert_eq!(
        line(&with("Stop", "", command)),
        r#"''"${CLAUDE_PLUGIN_ROOT}"'/run' ''"${CLAUDE_PLUGIN_DATA}"''"#
    );
}

#[test]
fn on_failure_block_sets_the_fail_mode() {
    let command = json!({"type": "command", "command": "x", "onFailure": "block"});
    assert_eq!(with("PreToolUse", "", command).manifest.fail_mode, FailMode::Closed);
    assert_eq!(hook("PreToolUse", "").manifest.fail_mode, FailMode::Open);
}

/// Each fault is reported with its location; the hook next to it is still loaded.
#[test]
fn faults_are_reported_with_line_and_column() {
    let table = [
        (r#""Stop": [{"hooks": [{"type": "agent", "prompt": "Done?"}]}]"#, r#"{"type""#, "`agent`"),
        (r#""Stop": [{"hooks": [{"type": "prompt"}]}]"#, r#"{"type""#, "no `prompt`"),
        (
            r#""Notification": [{"hooks": [{"type": "prompt", "prompt": "Done?"}]}]"#,
            r#"{"type""#,
            "a model can't decide anything",
        ),
        (r#""Stop": [{"hooks": [{"type": "http", "url": "ftp://x"}]}]"#, r#"{"type""#, "neither http://"),
        (r#""FileChanged": [{"hooks": []}]"#, r#"{"hooks""#, "never run here: files are not watched"),
        (r#""PreToolUsed": [{"hooks": []}]"#, r#"{"hooks""#, "no such event"),
        (r#""Stop": {"hooks": []}"#, r#"{"hooks""#, "must be a list"),
        (r#""Stop": ["./check.sh"]"#, r#""./check"#, "this group of `Stop` is not run"),
        (r#""Stop": [{"hooks": [{"type": "command"}]}]"#, r#"{"type""#, "no `command`"),
        (r#""Stop": [{"hooks": [{"command": "x"}]}]"#, r#"{"command""#, "`type`"),
        (
            r#""PreToolUse": [{"matcher": "B(", "hooks": []}]"#,
            r#"{"matcher""#,
            "not a valid regular expression",
        ),
        (
            r#""PreToolUse": [{"hooks": [{"type": "command", "command": "x", "if": "Bash(git"}]}]"#,
            r#"{"type""#,
            "no `)`",
        ),
    ];
    for (fault, at, words) in table {
        let text = format!(
            "{{\"hooks\": {{\n\"SessionEnd\": [{{\"hooks\": [{{\"type\": \"command\", \"command\": \"true\"}}]}}],\n{fault}\n}}}}"
        );
        let (hooks, problems) = read(&text);
        assert_eq!(hooks.len(), 1, "{fault}");
        let [problem] = &problems[..] else { panic!("{fault}: {problems:?}") };
        let column = fault.find(at).expect("a part of the fault") as u64 + 1;
        assert_eq!(problem.position, Some((3, column)), "{problem}");
        assert!(problem.message.contains(words), "{problem}");
        assert_eq!(problem.path, Path::new(SETTINGS));
    }
    let (_, problems) = read(r#"{"hooks": {"PreToolUsed": [{"hooks": []}]}}"#);
    assert_eq!(problems[0].hint.as_deref(), Some("did you mean `PreToolUse`?"));
}

#[test]
fn a_json_error_is_reported_with_line_and_column() {
    let (hooks, problems) = read("{\n  // our hooks\n  \"hooks\": {}\n}");
    assert_eq!(hooks, []);
    assert_eq!(problems[0].position, Some((2, 3)));
    assert!(problems[0].hint.as_deref().is_some_and(|hint| hint.contains("no comments")), "{}", problems[0]);
}

/// Many users write milliseconds, although Claude Code has always used seconds.
#[test]
fn an_excessive_timeout_is_clamped_and_reported() {
    let text = |timeout: &str| {
        format!(
            r#"{{"hooks": {{"Stop": [{{"hooks": [{{"type": "command", "command": "x", "timeout": {timeout}}}]}}]}}}}"#
        )
    };
    let (hooks, problems) = read(&text("30000"));
    assert_eq!(hooks[0].manifest.timeout, Duration::from_secs(600));
    assert!(problems[0].to_string().contains("in seconds"), "{}", problems[0]);
    let (hooks, problems) = read(&text("0"));
    assert_eq!((hooks[0].manifest.timeout, problems.len()), (Duration::from_millis(100), 1));
    assert_eq!(well(&text("0.5"))[0].manifest.timeout, Duration::from_millis(500));
}

#[test]
fn an_unsupported_key_is_reported_and_the_hook_runs() {
    for key in ["once", "asyncRewake"] {
        let settings =
            json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "x", key: true}]}]}});
        let (hooks, problems) = read(&settings.to_string());
        assert_eq!((hooks.len(), problems.len()), (1, 1), "{key}");
    }
}

#[test]
fn matchers_accept_tool_names_of_claude_code_and_epitome() {
    let table = [
        ("", "bash", true),
        ("*", "bash", true),
        (".*", "bash", true),
        ("Bash", "bash", true),
        ("bash", "bash", true),
        ("Bas", "bash", false),
        ("Edit|Write", "file_edit", true),
        ("Edit|Write", "file_write", true),
        ("Edit, Write", "file_write", true),
        ("Edit|Write", "bash", false),
        ("MultiEdit", "file_edit", true),
        ("file_.*", "file_read", true),
        ("Agent", "task", true),
        ("Task", "task", true),
        ("mcp__memory__.*", "mcp__memory__store", true),
        ("mcp__memory__.*", "mcp__files__read", false),
        ("^(?!Bash$)", "bash", false),
        ("^(?!Bash$)", "file_read", true),
        ("^[^B]", "bash", false),
        // Regression: guards for files did not see patches, and no hook saw skills and questions.
        ("Edit|Write", "apply_patch", true),
        ("^(Edit|Write)$", "apply_patch", true),
        ("Read", "apply_patch", false),
        ("^(?!Edit$)", "apply_patch", true),
        ("Skill", "skill", true),
        ("^AskUserQuestion$", "ask_user", true),
    ];
    for (matcher, tool, expected) in table {
        let fitted = matches(&hook("PreToolUse", matcher), &before(tool, json!({})));
        assert_eq!(fitted, expected, "{matcher} and {tool}");
    }
}

/// Guards for files read `file_path`, and their rules match any file of the patch.
#[test]
fn a_patch_names_its_files() {
    let patch =
        "*** Begin Patch\n*** Add File: a.txt\n+x\n*** Update File: src/b.rs\n@@\n-x\n+y\n*** End Patch";
    let call = call("apply_patch", json!({ "input": patch }));
    let input = to_claude_input(&call, Path::new("/w/app"));
    assert_eq!(input["file_path"], "/w/app/a.txt");
    assert_eq!(to_our_input("apply_patch", &input), call.input);
    assert_eq!(files_of_patch(&call).collect::<Vec<_>>(), ["a.txt", "src/b.rs"]);
}

#[test]
fn matchers_of_other_events_match_trigger_or_source() {
    let table = [
        (hook("PreCompact", "manual"), pre_compact(CompactTrigger::Manual, None), true),
        (hook("PreCompact", "auto"), pre_compact(CompactTrigger::Manual, None), false),
        (hook("PostCompact", "auto"), post_compact(CompactTrigger::Auto), true),
        (hook("SessionStart", "startup"), start("startup"), true),
        (hook("SessionStart", "startup|resume"), start("load"), true),
        (hook("SessionStart", "compact"), start("startup"), false),
        (hook("SessionEnd", "other"), end("closed"), true),
        (hook("SessionEnd", "logout"), end("closed"), false),
        // Events without a subject ignore the matcher.
        (hook("UserPromptSubmit", "Bash"), prompt("x"), true),
        (hook("Stop", "Bash"), stop(0), true),
        // Stop and SubagentStop are separate events.
        (hook("Stop", ""), in_subagent(stop(0), "review"), false),
        (hook("SubagentStop", ""), stop(0), false),
        (hook("SubagentStop", ""), in_subagent(stop(0), ""), true),
        (hook("SubagentStop", "review"), in_subagent(stop(0), "review"), true),
        (hook("SubagentStop", "review"), in_subagent(stop(0), "commit"), false),
        (hook("PostToolUse", ""), after("bash", json!({}), result("ok", None)), true),
        (hook("PostToolUse", ""), after("bash", json!({}), failure("exit 1")), false),
        (hook("PostToolUseFailure", ""), after("bash", json!({}), failure("exit 1")), true),
        (hook("PostToolUseFailure", ""), before("bash", json!({})), false),
    ];
    for (hook, hook_context, expected) in table {
        assert_eq!(matches(&hook, &hook_context), expected, "{} at {:?}", hook.name, hook_context.what);
    }
}

#[test]
fn an_if_rule_restricts_a_hook_to_matching_calls() {
    let bash = |command: &str| before("bash", json!({"command": command}));
    let edit = |path: &str| before("file_edit", json!({"file_path": path}));
    let table = [
        ("Bash(git *)", bash("git push"), true),
        ("Bash(git *)", bash("git"), true),
        ("Bash(git *)", bash("gitk"), false),
        ("Bash(git:*)", bash("git push"), true),
        ("Bash(git *)", bash("cd sub && LANG=C git push"), true),
        ("Bash(git *)", bash("make"), false),
        ("Bash(make test)", bash("make test"), true),
        ("Bash(make test)", bash("make tests"), false),
        ("Bash", bash("make"), true),
        ("Bash(*)", bash("make"), true),
        ("Bash(git *)", edit("git x"), false),
        ("Edit(*.rs)", edit("src/a.rs"), true),
        ("Edit(*.rs)", edit("/w/app/src/a.rs"), true),
        ("Edit(*.rs)", edit("a.md"), false),
        ("Edit(src/**)", edit("src/deep/a.md"), true),
        ("Edit(./src/**)", edit("lib/src/a.md"), false),
        ("Edit(//etc/**)", edit("/etc/hosts"), true),
        ("Edit(//etc/**)", edit("etc/hosts"), false),
        ("Edit(*.rs)", edit("/elsewhere/a.rs"), false),
        ("Bash(git *)", prompt("git push"), false),
    ];
    for (rule, hook_context, expected) in table {
        let event = if matches!(hook_context.what.event(), HookEvent::BeforeToolCall) {
            "PreToolUse"
        } else {
            "UserPromptSubmit"
        };
        let hook = with(event, "", json!({"type": "command", "command": "x", "if": rule}));
        assert_eq!(matches(&hook, &hook_context), expected, "{rule} at {:?}", hook_context.what);
    }
}

#[test]
fn files_named_in_a_command_line_are_found() {
    let table: [(&str, &[&str]); 15] = [
        (r#""$CLAUDE_PROJECT_DIR"/.claude/hooks/guard.py"#, &["/w/app/.claude/hooks/guard.py"]),
        ("${CLAUDE_PROJECT_DIR:-.}/a.sh", &["/w/app/a.sh"]),
        ("$(git rev-parse --show-toplevel)/a.sh", &["/w/app/a.sh"]),
        ("python3 -u ./hooks/../check.py", &["/w/app/python3", "/w/app/check.py"]),
        ("'/opt/my hooks/a.sh'", &["/opt/my hooks/a.sh", "/opt/my", "/w/app/hooks/a.sh"]),
        ("CONF=etc/c.toml ./a.sh", &["/w/app/etc/c.toml", "/w/app/a.sh"]),
        ("cd .claude && ./a.sh", &["/w/app/cd", "/w/app/a.sh", "/w/app/.claude/a.sh"]),
        ("sh -c './a.sh --fix=b.txt'", &["/w/app/sh", "/w/app/b.txt", "/w/app/a.sh"]),
        ("x|y;z&", &["/w/app/x", "/w/app/y", "/w/app/z"]),
        // A user's hook wrote a log into its repository, and required consent again after each run.
        ("./a.sh >> .claude/log.txt 2>&1", &["/w/app/a.sh", "/w/app/2"]),
        ("./a.sh >'my log'; ./b.sh", &["/w/app/a.sh", "/w/app/b.sh"]),
        ("> out ./a.sh", &["/w/app/a.sh"]),
        ("./a.sh > >(./b.sh) < in", &["/w/app/a.sh", "/w/app/b.sh", "/w/app/in"]),
        ("cat > a.sh; . a.sh", &["/w/app/cat", "/w/app/.", "/w/app/a.sh"]),
        ("", &[]),
    ];
    for (line, expected) in table {
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(files_named(line, Path::new("/w/app")).expect("few paths"), expected, "{line}");
    }
    let wanders = "cd a; ".repeat(20);
    assert!(files_named(&wanders, Path::new("/w/app")).is_err());
}

#[test]
fn a_changed_declaration_has_a_different_digest() {
    let plain = hook("PreToolUse", "Bash");
    let command = json!({"type": "command", "command": "./check.sh"});
    let others = [
        hook("PreToolUse", "Edit"),
        hook("PostToolUse", "Bash"),
        with("PreToolUse", "Bash", json!({"type": "command", "command": "./check.sh -f"})),
        with("PreToolUse", "Bash", json!({"type": "command", "command": "./check.sh", "if": "Bash(a)"})),
    ];
    let digest = |hook: &Hook| hash_hook(hook).expect("no file is read");
    assert_eq!(digest(&plain), digest(&with("PreToolUse", "Bash", command)));
    assert!(others.iter().all(|other| digest(other) != digest(&plain)));
}
