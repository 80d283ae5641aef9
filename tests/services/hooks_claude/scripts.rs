//! Runs real scripts: from settings and payload to the resulting resolution.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use epitome::hooks::chain::ChainLink;
use epitome::hooks::chain::{Chain, ChainRun, links};
use epitome::hooks::claude::parse;
use epitome::hooks::claude::payload::payload;
use epitome::hooks::hook::{Hook, HookKind, HookOrigin};
use epitome::hooks::hook_context::{CompactTrigger, HookContext};
use epitome::hooks::output::{PermissionDecision, RawOutcome, Resolution};
use epitome::hooks::process::{self, HookProgram, ProcessSpec};
use epitome::tools::reaper::Reaper;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::moments::*;

/// A project with hooks for one event: a list of groups of command lines.
struct Project {
    folder: TempDir,
    hooks: Vec<Arc<Hook>>,
}

impl Project {
    fn new(event: &str, groups: &[&[&str]]) -> Project {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let groups: Vec<Value> = groups
            .iter()
            .map(|lines| {
                let hooks: Vec<Value> =
                    lines.iter().map(|line| json!({"type": "command", "command": line})).collect();
                json!({"hooks": hooks})
            })
            .collect();
        let settings = json!({"hooks": {event: groups}}).to_string();
        let path = folder.path().join(".claude/settings.json");
        let (hooks, problems) = parse(&path, &settings, HookOrigin::User, folder.path());
        assert_eq!(problems, []);
        Project { hooks: hooks.into_iter().map(Arc::new).collect(), folder }
    }

    fn with_file(self, name: &str, text: &str) -> Project {
        fs::write(self.folder.path().join(name), text).expect("a written file");
        self
    }

    fn run(&self, mut hook_context: HookContext) -> Resolution {
        hook_context.base.cwd = self.folder.path().to_path_buf();
        let mut chain = Chain::new(hook_context.clone(), links(&self.hooks, &hook_context));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        while let Some(runs) = chain.next() {
            let ran =
                runtime.block_on(futures_util::future::join_all(runs.into_iter().map(|run| self.one(run))));
            chain.record_results(ran.into_iter().map(|ran| (ran, Duration::ZERO)).collect());
        }
        chain.finish()
    }

    async fn one(&self, run: ChainRun) -> RawOutcome {
        let ChainLink::Hook(hook) = &run.link else { panic!("no handler was given") };
        let HookKind::Claude { line, .. } = &hook.kind else { panic!("not a Claude Code hook") };
        let order = ProcessSpec {
            program: HookProgram::Line(line.clone()),
            stdin: payload(&run.hook_context, &PathBuf::from("/none.jsonl")).to_string().into_bytes(),
            cwd: self.folder.path().to_path_buf(),
            environment: Arc::new(std::env::vars_os().collect()),
            more: vec![("CLAUDE_PROJECT_DIR", OsString::from(self.folder.path()))],
            limit: hook.manifest.timeout,
            reaper: Arc::new(Reaper::disabled()),
            sandbox: None,
        };
        process::run(order).await.expect("a shell")
    }
}

fn rm() -> HookContext {
    before("bash", json!({"command": "rm -rf build", "description": "Clean"}))
}

#[test]
fn a_pre_tool_use_hook_blocks_with_exit_2() {
    let project = Project::new("PreToolUse", &[&["sh \"$CLAUDE_PROJECT_DIR\"/guard.sh"]]).with_file(
        "guard.sh",
        "if grep -q '\"command\":\"rm -rf'; then echo 'rm -rf is not allowed' >&2; exit 2; fi",
    );
    let blocked = project.run(rm()).block.map(|(_, reason)| reason);
    assert_eq!(blocked.as_deref(), Some("rm -rf is not allowed"));
    let allowed = project.run(before("bash", json!({"command": "ls"})));
    assert_eq!((allowed.quiet, allowed.block, allowed.trail.len()), (1, None, 0));
}

#[test]
fn a_changed_input_is_mapped_back_to_epitomes_keys() {
    let answer = json!({"hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "allow",
        "permissionDecisionReason": "Safer so",
        "updatedInput": {"command": "rm -ri build", "timeout": 1500}
    }});
    let project =
        Project::new("PreToolUse", &[&["cat answer.json"]]).with_file("answer.json", &answer.to_string());
    let resolution = project.run(rm());
    let (input, _) = resolution.input.expect("a changed input");
    assert_eq!(Value::Object(input), json!({"command": "rm -ri build", "timeout": 2}));
    assert!(
        matches!(resolution.decision, Some((PermissionDecision::Allow, _, Some(why))) if why == "Safer so")
    );
}

#[test]
fn stdout_of_a_user_prompt_submit_hook_is_context() {
    let project = Project::new("UserPromptSubmit", &[&["echo The branch is main."]]);
    let context: Vec<String> =
        project.run(prompt("hello")).context.into_iter().map(|(_, text)| text).collect();
    assert_eq!(context, ["The branch is main."]);
}

#[test]
fn stderr_of_a_post_tool_use_hook_is_added_to_the_tool_result() {
    let project = Project::new("PostToolUse", &[&["echo 'a.rs: missing semicolon' >&2; exit 2"]]);
    let edited = after("file_edit", json!({"file_path": "a.rs"}), result("Edited.", None));
    let text = project.run(edited).result.expect("a changed result").text;
    assert!(text.starts_with("Edited.") && text.contains("a.rs: missing semicolon"), "{text}");
}

#[test]
fn stop_hook_active_lets_a_hook_refuse_the_stop_once() {
    let line = r#"if grep -q '"stop_hook_active":false'; then echo '{"decision": "block", "reason": "Run the tests"}'; fi"#;
    let project = Project::new("Stop", &[&[line]]);
    let follow_ups: Vec<String> =
        project.run(stop(0)).follow_ups.into_iter().map(|(_, said)| said.text).collect();
    assert_eq!(follow_ups, ["Run the tests"]);
    assert_eq!(project.run(stop(1)).follow_ups, []);
}

#[test]
fn pre_compact_hooks_extend_the_instructions_and_can_block() {
    let project =
        Project::new("PreCompact", &[&["echo Keep the ids.", "echo Keep the paths."], &["echo Be brief."]]);
    let resolution = project.run(pre_compact(CompactTrigger::Manual, Some("Focus on tests.")));
    let expected = "Focus on tests.\n\nKeep the ids.\n\nKeep the paths.\n\nBe brief.";
    assert_eq!(resolution.custom_instructions.as_deref(), Some(expected));
    let project = Project::new("PreCompact", &[&["echo not now >&2; exit 2"]]);
    let blocked = project.run(pre_compact(CompactTrigger::Auto, None)).block.map(|(_, reason)| reason);
    assert_eq!(blocked.as_deref(), Some("not now"));
}

/// Two hooks of one group wait for each other's file: run in sequence, neither would end.
#[test]
fn hooks_of_one_group_run_concurrently() {
    let meet = |own: &str, other: &str| {
        format!(
            "touch {own}; while ! [ -e {other} ]; do sleep 0.01; done; echo '{{\"systemMessage\": \"{own}\"}}'"
        )
    };
    let (first, second) = (meet("a", "b"), meet("b", "a"));
    let notices = Project::new("SessionEnd", &[&[&first, &second]]).run(end("closed")).notices;
    let notices: Vec<String> = notices.into_iter().map(|(_, text)| text).collect();
    assert_eq!(notices, ["a", "b"]);
}

/// Command lines are written for bash, with which Claude Code runs them.
#[test]
fn command_lines_may_use_bash_syntax() {
    let project = Project::new("UserPromptSubmit", &[&["[[ abc == a* ]] && cat <<< yes"]]);
    assert_eq!(project.run(prompt("x")).context.first().map(|(_, text)| text.as_str()), Some("yes"));
}

#[test]
fn a_failing_hook_changes_nothing_and_is_in_the_trail() {
    let resolution = Project::new("PreToolUse", &[&["echo oh >&2; exit 1"]]).run(rm());
    assert_eq!(resolution.block, None);
    let [run] = &resolution.trail[..] else { panic!("{:?}", resolution.trail) };
    assert_eq!((run.end.as_str(), run.event.as_str()), ("exit 1", "PreToolUse"));
    assert!(run.remarks.concat().contains("oh"), "{:?}", run.remarks);
}
