//! Hook discovery: which files are hooks, which are refused and why, and that nothing from a repository runs
//! without the user's consent. Uses temporary homes and repositories, and scripts that leave a mark when they
//! run.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epitome::config::{self, HookSettings};
use epitome::hooks::discover::{FoundHooks, HookSearch, discover, watched};
use epitome::hooks::event::HookEvent;
use epitome::hooks::hook::{FailMode, HookKind, HookOrigin, PayloadMessages};
use epitome::hooks::trust::{TrustDecision, TrustStore, TrustSubject, TrustVerdict, unchanged};
use epitome::paths::Paths;
use epitome::store::Store;
use epitome::thread::{Change, FORMAT_VERSION, HookRun, SessionId, StopReason, Usage};
use epitome::tools::Workspace;
use epitome::tools::reaper::Reaper;
use epitome_test_harness::user::{Ran, User};
use serde_json::json;

/// A user's home and a repository in it.
struct Disk {
    root: tempfile::TempDir,
    settings: HookSettings,
    environment: Arc<Vec<(OsString, OsString)>>,
}

impl Disk {
    fn new() -> Disk {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let disk = Disk {
            root,
            settings: HookSettings::default(),
            environment: Arc::new(vec![("PATH".into(), path), ("TOKEN".into(), "sesame".into())]),
        };
        std::fs::create_dir_all(disk.at("repo/.git")).expect("directories can be made");
        disk
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().canonicalize().expect("it was made").join(path)
    }

    fn paths(&self) -> Paths {
        Paths { user_home: Some(self.at("")), ..Paths::below(&self.at("home")) }
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("directories can be made");
        std::fs::write(&path, text).expect("files can be written");
        path
    }

    /// An executable that answers `hook` with this text.
    fn script(&self, path: &str, answer: &str) -> PathBuf {
        self.program(path, &format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\n"))
    }

    fn program(&self, path: &str, text: &str) -> PathBuf {
        let path = self.write(path, text);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is ours");
        path
    }

    /// An executable that adds a mark next to the home whenever it is started.
    fn marking(&self, path: &str, answer: &str) -> PathBuf {
        let mark = self.at("repo/mark");
        self.program(path, &format!("#!/bin/sh\necho ran >> '{}'\necho {answer}\n", mark.display()))
    }

    fn marks(&self) -> usize {
        std::fs::read_to_string(self.at("repo/mark")).map_or(0, |text| text.lines().count())
    }

    fn trust(&self) -> TrustStore {
        let (trust, problem) = TrustStore::load(&self.paths(), self.settings.trust);
        assert_eq!(problem, None);
        trust
    }

    fn find(&self) -> FoundHooks {
        self.find_in("repo", &self.trust())
    }

    fn find_in(&self, cwd: &str, trust: &TrustStore) -> FoundHooks {
        let cwd = self.at(cwd);
        discover(&HookSearch {
            paths: &self.paths(),
            workspace: &Workspace::new(cwd, Vec::new(), self.environment.clone()),
            settings: &self.settings,
            reaper: &Arc::new(Reaper::disabled()),
            sandbox: &Arc::default(),
            trust,
        })
    }

    /// Trusts all hooks that require consent, permanently.
    fn allow_all(&self) {
        let waiting = self.find().untrusted;
        let items: Vec<TrustSubject> =
            waiting.into_iter().map(|item| TrustSubject { path: item.path, digest: item.digest }).collect();
        self.trust().remember(&items, TrustDecision::Always).expect("it is kept");
    }

    fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.at("")).unwrap_or(path).display().to_string()
    }
}

fn names(found: &FoundHooks) -> Vec<&str> {
    found.hooks.iter().map(|hook| hook.name.as_str()).collect()
}

fn messages(found: &FoundHooks) -> Vec<String> {
    found.problems.iter().map(|problem| problem.message.clone()).collect()
}

#[test]
fn without_files_there_are_no_hooks() {
    assert_eq!(Disk::new().find(), FoundHooks::default());
}

#[test]
fn an_executable_declares_its_events() {
    for (answer, wanted) in [
        ("turn_end", &[(HookEvent::TurnEnd, "turn_end")][..]),
        ("after_turn", &[(HookEvent::TurnEnd, "after_turn")]),
        (
            "PreToolUse, tool.result\n",
            &[(HookEvent::BeforeToolCall, "PreToolUse"), (HookEvent::AfterToolCall, "tool.result")],
        ),
        (r#"{"protocol":2,"events":["Stop"]}"#, &[(HookEvent::AgentStop, "Stop")]),
        // Two names of one event are one registration.
        ("turn_end after_turn", &[(HookEvent::TurnEnd, "turn_end")]),
    ] {
        let disk = Disk::new();
        disk.script("home/hooks/a", answer);
        let found = disk.find();
        assert_eq!(messages(&found), Vec::<String>::new(), "{answer}");
        let events: Vec<(HookEvent, &str)> =
            found.hooks[0].events.iter().map(|(event, name)| (*event, name.as_str())).collect();
        assert_eq!(events, wanted, "{answer}");
        assert_eq!(found.hooks[0].origin, HookOrigin::User);
    }
}

/// Regression: editors on Windows save files with a byte order mark. Hooks in such files were reported as having an
/// unknown event or invalid JSON.
#[test]
fn a_byte_order_mark_is_skipped() {
    let disk = Disk::new();
    disk.script("home/hooks/a", "\u{feff}turn_end");
    disk.write("home/hooks/b.json", "\u{feff}{\"events\": [\"turn_end\"], \"then\": {}}");
    let found = disk.find();
    assert_eq!((names(&found), messages(&found)), (vec!["a", "b.json"], Vec::new()));
}

/// Regression: a user had a file in place of the hooks folder, and it was silently ignored.
#[test]
fn a_hooks_path_that_is_not_a_folder_is_reported() {
    let disk = Disk::new();
    disk.write("home/hooks", "turn_end");
    let found = disk.find();
    assert_eq!(found.problems.len(), 1, "{found:?}");
    assert!(found.problems[0].message.contains("cannot be read"), "{found:?}");
}

#[test]
fn all_fields_of_a_manifest_are_parsed() {
    let disk = Disk::new();
    let answer = json!({
        "protocol": 2, "events": ["before_tool_call"], "timeout_ms": 1500, "priority": 5,
        "match": {"tool_name": ["bash", "mcp_*"], "invoked_by": "main", "usage_ratio_gte": 0.5, "every_turns": 3},
        "fail_mode": "closed", "exit_2_blocks": true, "messages": "last:4", "description": "guards",
        "mode": "resident", "transcript": true,
    });
    let path = disk.script("home/hooks/guard", &answer.to_string());
    let found = disk.find();
    assert_eq!(messages(&found), Vec::<String>::new());
    let hook = &found.hooks[0];
    assert_eq!(hook.kind, HookKind::Resident { path });
    let manifest = &hook.manifest;
    assert_eq!((manifest.protocol, manifest.timeout.as_millis(), manifest.priority), (2, 1500, 5));
    assert_eq!((manifest.fail_mode, manifest.messages), (FailMode::Closed, Some(PayloadMessages::Last(4))));
    assert!(manifest.exit_2_blocks && manifest.transcript);
    assert_eq!(manifest.matches.tool_name, ["bash", "mcp_*"]);
    assert_eq!((manifest.matches.usage_ratio_gte, manifest.matches.every_turns), (Some(0.5), Some(3)));
}

/// A fault in a declarative file is reported with its location, and the file is not a hook.
#[test]
fn faults_in_declarative_files_have_a_location() {
    for (name, text, place, message, hint) in [
        (
            "a.yaml",
            "events: [turn_ned]\nthen: {}\n",
            Some((1, 9)),
            "there is no event \"turn_ned\"",
            "turn_end",
        ),
        (
            "a.yaml",
            "events: [turn_end]\ntimeout_ms: soon\nthen: {}\n",
            Some((2, 13)),
            "\"timeout_ms\" must be a whole number from 100 to 600000",
            "",
        ),
        (
            "a.yaml",
            "events: [turn_end]\nmatch:\n  tool: [bash]\nthen: {}\n",
            None,
            "\"match\" has no \"tool\"",
            "tool_name",
        ),
        (
            "a.yaml",
            "events: [turn_end]\nmatch: { tool_name: ['['] }\nthen: {}\n",
            Some((2, 8)),
            "\"match.tool_name\" must be a list of globs",
            "",
        ),
        ("a.yaml", "events: [turn_end\n", None, "the hook is not valid YAML", ""),
        ("a.yaml", "events: [turn_end]\n", None, "`then` and `url` are both missing", ""),
        ("a.yaml", "then: {}\n", None, "names no event", "turn_end"),
        (
            "a.json",
            "{\n  \"events\": [\"turn_end\"],\n  \"then\": []\n}",
            Some((3, 11)),
            "\"then\" must be a map",
            "",
        ),
        ("a.json", "{\"events\": }", Some((1, 12)), "the hook is not a JSON object", ""),
        ("a.json", "{\"events\": [\"turn_end\"], \"url\": \"ftp://x\"}", Some((1, 33)), "https://", ""),
    ] {
        let disk = Disk::new();
        disk.write(&format!("home/hooks/{name}"), text);
        let found = disk.find();
        let [problem] = &found.problems[..] else { panic!("{text}: {:?}", found.problems) };
        assert!(found.hooks.is_empty(), "{text}");
        assert!(problem.message.contains(message), "{text}: {problem}");
        if place.is_some() {
            assert_eq!(problem.position, place, "{text}: {problem}");
        }
        assert!(problem.hint.as_deref().unwrap_or_default().contains(hint), "{text}: {problem}");
    }
}

#[test]
fn unknown_events_and_keys_are_reported_and_skipped() {
    let disk = Disk::new();
    disk.write("home/hooks/a.yaml", "events: [turn_end, turn_start]\npriorty: 3\nthen: { notice: hello }\n");
    let found = disk.find();
    assert_eq!(names(&found), ["a.yaml"]);
    let problems: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("a.yaml:1:9: there is no event \"turn_start\""), "{problems:?}");
    assert!(
        problems[1].contains("a.yaml:2:10: unknown field \"priorty\", ignored (did you mean \"priority\"?)"),
        "{problems:?}"
    );
}

#[test]
fn an_invalid_executable_is_reported_with_the_reason() {
    for (text, reason) in [
        ("#!/bin/sh\nexit 3\n", "exit code 3"),
        ("#!/bin/sh\necho 'no such module' >&2; exit 1\n", "no such module"),
        ("#!/bin/sh\n", "it names no event"),
        ("#!/bin/sh\necho usage: deploy TARGET\n", "there is no event \"usage:\""),
        (
            "#!/bin/sh\necho '{\"events\":[\"turn_end\"],\"priority\":\"high\"}'\n",
            "line 1, column 35 of its answer",
        ),
        ("#!/bin/sh\nhead -c 200000 /dev/zero\n", "more than 64 KiB"),
        ("#!/no/such/interpreter\n", "/no/such/interpreter"),
    ] {
        let disk = Disk::new();
        disk.program("home/hooks/a", text);
        let found = disk.find();
        assert!(found.hooks.is_empty(), "{text}");
        let [problem] = &found.problems[..] else { panic!("{text}: {:?}", found.problems) };
        assert!(problem.to_string().contains(reason), "{text}: {problem}");
    }
}

#[test]
fn skipped_files_are_listed_with_their_reason() {
    let disk = Disk::new();
    disk.write("home/hooks/plain", "not executable");
    std::fs::create_dir_all(disk.at("home/hooks/folder")).expect("directories can be made");
    std::fs::create_dir_all(disk.at("home/hooks/enforced")).expect("directories can be made");
    for name in [".hidden", "old~", "old.bak", "off.disable", "README.md", "notes.txt"] {
        disk.marking(&format!("home/hooks/{name}"), "turn_end");
    }
    let found = disk.find();
    let skipped: Vec<(String, &str)> =
        found.skipped.iter().map(|skipped| (disk.relative(&skipped.path), skipped.reason.as_str())).collect();
    let wanted = [
        (".hidden", "a hidden file"),
        ("README.md", "a text file"),
        ("folder", "a directory"),
        ("notes.txt", "a text file"),
        ("off.disable", "switched off by its name"),
        ("old.bak", "a backup"),
        ("old~", "a backup"),
        ("plain", "not executable"),
    ];
    assert_eq!(skipped, wanted.map(|(name, reason)| (format!("home/hooks/{name}"), reason)));
    assert_eq!((found.hooks.len(), disk.marks()), (0, 0));
}

#[test]
fn earlier_places_shadow_later_ones_and_nothing_shadows_enforced_hooks() {
    let mut disk = Disk::new();
    disk.settings.trust = config::HookTrust::Run;
    for place in ["home/hooks/enforced", "repo/.epitome/hooks", "home/hooks", ".kodelet/hooks"] {
        disk.script(&format!("{place}/guard"), "tool.call");
    }
    disk.script("repo/.kodelet/hooks/lint", "turn_end");
    disk.script("home/hooks/lint", "turn_end");
    disk.script(".kodelet/hooks/old", "turn_end");
    disk.script("repo/.kodelet/plugins/acme@tools/hooks/notify", "turn_end");
    disk.script("home/plugins/mine/hooks/notify", "turn_end");
    let found = disk.find();
    let places: Vec<(&str, HookOrigin, String)> = found
        .hooks
        .iter()
        .map(|hook| (hook.name.as_str(), hook.origin, disk.relative(&hook.files[0])))
        .collect();
    let wanted = [
        ("guard", HookOrigin::Enforced, "home/hooks/enforced/guard"),
        ("lint", HookOrigin::Repository, "repo/.kodelet/hooks/lint"),
        ("acme/tools/notify", HookOrigin::Repository, "repo/.kodelet/plugins/acme@tools/hooks/notify"),
        ("old", HookOrigin::User, ".kodelet/hooks/old"),
        ("mine/notify", HookOrigin::User, "home/plugins/mine/hooks/notify"),
    ];
    assert_eq!(places, wanted.map(|(name, place, path)| (name, place, path.to_owned())));
    let shadowed = found.skipped.iter().filter(|skipped| skipped.reason.contains("has the same name"));
    assert_eq!(shadowed.count(), 4);
}

#[test]
fn an_invalid_hook_shadows_nothing() {
    let mut disk = Disk::new();
    disk.settings.trust = config::HookTrust::Run;
    disk.program("repo/.epitome/hooks/lint", "#!/bin/sh\nexit 1\n");
    disk.script("home/hooks/lint", "turn_end");
    let found = disk.find();
    assert_eq!((found.hooks.len(), found.hooks[0].origin), (1, HookOrigin::User));
}

#[test]
fn hooks_are_ordered_by_priority_then_place_then_name() {
    let disk = Disk::new();
    disk.script("home/hooks/enforced/z", "turn_end");
    disk.script("home/hooks/b", "turn_end");
    disk.script("home/hooks/a", "turn_end");
    disk.script("home/hooks/y", r#"{"events":["turn_end"],"priority":1}"#);
    assert_eq!(names(&disk.find()), ["y", "z", "a", "b"]);
}

#[test]
fn hooks_of_the_repository_root_are_found_from_a_subfolder() {
    let mut disk = Disk::new();
    disk.settings.trust = config::HookTrust::Run;
    std::fs::create_dir_all(disk.at("repo/deep/down")).expect("directories can be made");
    disk.script("repo/.epitome/hooks/lint", "turn_end");
    disk.script("repo/deep/down/.epitome/hooks/near", "turn_end");
    assert_eq!(names(&disk.find_in("repo/deep/down", &disk.trust())), ["near", "lint"]);
}

#[test]
fn compat_dirs_and_all_hooks_can_be_disabled() {
    let mut disk = Disk::new();
    disk.settings.compat_dirs = false;
    disk.script(".kodelet/hooks/old", "turn_end");
    disk.script("home/hooks/new", "turn_end");
    assert_eq!(names(&disk.find()), ["new"]);
    disk.settings.enabled = false;
    assert_eq!(disk.find(), FoundHooks::default());
}

#[test]
fn overrides_in_the_settings_apply_and_invalid_ones_do_not() {
    let mut disk = Disk::new();
    disk.script("home/hooks/a", r#"{"events":["turn_end"],"priority":1,"timeout_ms":500}"#);
    let fields = json!({"priority": 9, "timeout_ms": "long", "events": ["Stop"]});
    disk.settings.overrides.insert("a".to_owned(), fields.as_object().expect("it is one").clone());
    let found = disk.find();
    let hook = &found.hooks[0];
    assert_eq!((hook.manifest.priority, hook.manifest.timeout.as_millis()), (9, 500));
    assert_eq!(hook.events, [(HookEvent::AgentStop, "Stop".to_owned())]);
    let [problem] = &found.problems[..] else { panic!("{:?}", found.problems) };
    assert!(
        problem.to_string().contains("home/config.toml: hooks.overrides.\"a\": \"timeout_ms\" must be"),
        "{problem}"
    );
}

#[test]
fn a_webhooks_secret_comes_from_the_environment_and_is_not_shown() {
    let disk = Disk::new();
    disk.write(
        "home/hooks/post.yaml",
        "events: [agent_stop]\nurl: https://x.example/key-1\nheaders: { Authorization: $TOKEN }\nsecret: plain-2\n",
    );
    let found = disk.find();
    let HookKind::Webhook { headers, secret, .. } = &found.hooks[0].kind else { panic!("{found:?}") };
    assert_eq!((headers["Authorization"].as_str(), secret.as_deref()), ("sesame", Some("plain-2")));
    let shown = format!("{found:?}");
    assert!(shown.contains("Authorization"), "{shown}");
    assert!(["sesame", "plain-2", "key-1"].iter().all(|secret| !shown.contains(secret)), "{shown}");

    disk.write("home/hooks/post.yaml", "events: [agent_stop]\nurl: https://x.example\nsecret: $MISSING\n");
    let found = disk.find();
    assert_eq!(messages(&found), ["the environment variable MISSING is not set"]);
    assert!(found.hooks.is_empty(), "without its secret it would be somebody else's");
}

/// Opening a cloned repository must not run code, not even to learn which events a hook handles.
#[test]
fn hooks_of_a_repository_do_not_run_before_consent() {
    let disk = Disk::new();
    disk.marking("repo/.epitome/hooks/lint", "turn_end");
    disk.marking("repo/.kodelet/plugins/acme@tools/hooks/notify", "turn_end");
    disk.write("repo/.epitome/hooks/then.yaml", "events: [turn_end]\nthen: { notice: hello }\n");
    disk.script("home/hooks/lint", "turn_end");
    let found = disk.find();
    assert_eq!(names(&found), ["lint"], "an untrusted hook shadows nothing");
    assert_eq!(found.hooks[0].origin, HookOrigin::User);
    let waiting: Vec<&str> = found.untrusted.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(waiting, ["lint", "then.yaml", "acme/tools/notify"]);
    assert!(found.untrusted[1].what.contains("turn_end"), "{}", found.untrusted[1].what);
    assert_eq!(disk.marks(), 0);

    disk.allow_all();
    let found = disk.find();
    assert_eq!(names(&found), ["lint", "then.yaml", "acme/tools/notify"]);
    assert_eq!((found.hooks[0].origin, disk.marks()), (HookOrigin::Repository, 2));
    disk.find();
    assert_eq!(disk.marks(), 2, "the answers are known");
}

#[test]
fn changed_content_requires_consent_even_with_equal_size_and_time() {
    let disk = Disk::new();
    let path = disk.marking("repo/.epitome/hooks/lint", "turn_end");
    disk.allow_all();
    let hook = disk.find().hooks.remove(0);
    assert!(unchanged(&hook));

    let time = path.metadata().and_then(|metadata| metadata.modified()).expect("files have times");
    let text = std::fs::read_to_string(&path).expect("it is there");
    disk.marking("repo/.epitome/hooks/lint", "turn.end");
    assert_eq!(std::fs::read_to_string(&path).expect("it is there").len(), text.len());
    let file = std::fs::File::options().write(true).open(&path).expect("it is ours");
    file.set_modified(time).expect("times can be set");
    drop(file);

    assert!(!unchanged(&hook));
    let marks = disk.marks();
    let found = disk.find();
    assert_eq!((found.hooks.len(), found.untrusted.len(), disk.marks()), (0, 1, marks));
}

#[test]
fn a_never_decision_holds_until_the_file_changes() {
    let disk = Disk::new();
    disk.marking("repo/.epitome/hooks/lint", "turn_end");
    let waiting = disk.find().untrusted.remove(0);
    let item = TrustSubject { path: waiting.path, digest: waiting.digest };
    disk.trust().remember(std::slice::from_ref(&item), TrustDecision::Never).expect("it is kept");
    let found = disk.find();
    assert_eq!((found.hooks.len(), found.untrusted.len(), disk.marks()), (0, 0, 0));
    assert_eq!(found.skipped[0].reason, "you said never to this version");

    disk.marking("repo/.epitome/hooks/lint", "agent_stop");
    assert_eq!(disk.find().untrusted.len(), 1);
}

#[test]
fn a_once_decision_ends_with_the_session() {
    let disk = Disk::new();
    disk.script("repo/.epitome/hooks/lint", "turn_end");
    let mut trust = disk.trust();
    let waiting = disk.find_in("repo", &trust).untrusted.remove(0);
    trust
        .remember(&[TrustSubject { path: waiting.path, digest: waiting.digest }], TrustDecision::Once)
        .expect("no disk is asked");
    assert_eq!(names(&disk.find_in("repo", &trust)), ["lint"]);
    assert_eq!(disk.find().untrusted.len(), 1);
}

#[test]
fn trust_policies_decide_without_asking() {
    for (policy, hooks, marks) in [(config::HookTrust::Run, 1, 1), (config::HookTrust::Never, 0, 0)] {
        let mut disk = Disk::new();
        disk.settings.trust = policy;
        disk.marking("repo/.epitome/hooks/lint", "turn_end");
        let found = disk.find();
        assert_eq!((found.hooks.len(), found.untrusted.len(), disk.marks()), (hooks, 0, marks), "{policy:?}");
    }
}

#[test]
fn a_damaged_trust_store_trusts_nothing_and_is_replaced_on_a_decision() {
    let disk = Disk::new();
    disk.script("repo/.epitome/hooks/lint", "turn_end");
    disk.allow_all();
    let file = TrustStore::file(&disk.paths());
    let text = std::fs::read_to_string(&file).expect("it was written");
    std::fs::write(&file, &text[..text.len() / 2]).expect("files can be written");
    let (mut trust, problem) = TrustStore::load(&disk.paths(), config::HookTrust::Ask);
    assert!(problem.expect("it is reported").message.contains("damaged"));
    let found = disk.find_in("repo", &trust);
    let waiting = &found.untrusted[0];
    let item = TrustSubject { path: waiting.path.clone(), digest: waiting.digest.clone() };
    trust.remember(std::slice::from_ref(&item), TrustDecision::Always).expect("it is kept");
    assert!(file.with_extension("damaged").exists());
    assert_eq!(disk.trust().verdict(&item.path, &item.digest), TrustVerdict::Trusted);
    let mode = file.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o077, 0, "only the user may read it");
}

/// Two daemons of one home store decisions at the same time: neither may discard the other's.
#[test]
fn decisions_of_two_processes_are_both_kept() {
    let disk = Disk::new();
    let item = |name: &str| TrustSubject { path: disk.at(name), digest: "0".repeat(64) };
    let (mut first, mut second) = (disk.trust(), disk.trust());
    first.remember(&[item("a")], TrustDecision::Always).expect("it is kept");
    second.remember(&[item("b")], TrustDecision::Never).expect("it is kept");
    assert_eq!(second.verdict(&item("a").path, &item("a").digest), TrustVerdict::Trusted);
    assert_eq!(
        first.verdict(&item("b").path, &item("b").digest),
        TrustVerdict::Unknown,
        "not read again yet"
    );
    assert_eq!(first.reload(), None);
    assert_eq!(first.verdict(&item("b").path, &item("b").digest), TrustVerdict::Refused);
}

#[test]
fn a_symlink_out_of_the_repository_is_not_a_hook() {
    let mut disk = Disk::new();
    disk.settings.trust = config::HookTrust::Run;
    let outside = disk.marking("elsewhere/tool", "turn_end");
    let inside = disk.script("repo/scripts/tool", "turn_end");
    std::fs::create_dir_all(disk.at("repo/.epitome/hooks")).expect("directories can be made");
    for (target, name) in [(outside.as_path(), "out"), (&inside, "in"), (Path::new("/nowhere"), "dead")] {
        std::os::unix::fs::symlink(target, disk.at(&format!("repo/.epitome/hooks/{name}")))
            .expect("links can be made");
    }
    let found = disk.find();
    assert_eq!((names(&found), disk.marks()), (vec!["in"], 0));
    let reasons: Vec<&str> = found.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert_eq!(reasons, ["a link that leads out of the repository, or nowhere"; 2]);
}

/// A settings file names scripts: consent covers the line and the current contents of these scripts.
#[test]
fn hooks_in_settings_files_are_pinned_together_with_their_scripts() {
    let disk = Disk::new();
    let line = "\"$CLAUDE_PROJECT_DIR\"/.claude/hooks/check.sh --strict";
    let settings = json!({"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": line}]}]}});
    disk.write("repo/.claude/settings.json", &settings.to_string());
    let script = disk.program("repo/.claude/hooks/check.sh", "#!/bin/sh\n");
    let waiting = disk.find().untrusted;
    assert_eq!(waiting.len(), 1);
    assert_eq!((&*waiting[0].what, &*waiting[0].runs), ("runs at `PreToolUse` of `Bash`", line));
    assert_eq!(waiting[0].files, [disk.at("repo/.claude/settings.json"), script]);
    disk.allow_all();
    let hook = disk.find().hooks.remove(0);
    assert!(matches!(hook.kind, HookKind::Claude { .. }) && unchanged(&hook));

    disk.program("repo/.claude/hooks/check.sh", "#!/bin/sh\nrm -rf ~\n");
    assert!(!unchanged(&hook));
    assert_eq!(disk.find().untrusted.len(), 1);
}

/// Regression: every distinct word of a command line counted as a file, and a line with 64 of them was silently
/// ignored, so a user's guard did not run. Only existing files count, and a line that is not used is reported as a
/// problem.
#[test]
fn a_line_of_many_words_is_a_hook_and_one_of_too_many_files_is_reported() {
    let mut disk = Disk::new();
    let words: Vec<String> = (0..200).map(|number| format!("word/{number}")).collect();
    let line = format!("echo {}; ./guard.sh", words.join(" "));
    let settings = json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": line}]}]}});
    disk.write("repo/.claude/settings.json", &settings.to_string());
    let guard = disk.program("repo/guard.sh", "#!/bin/sh\n");
    let found = disk.find();
    assert_eq!((found.problems.len(), found.untrusted.len()), (0, 1), "{:?}", found.problems);
    assert_eq!(found.untrusted[0].files, [disk.at("repo/.claude/settings.json"), guard]);

    for word in &words {
        disk.write(&format!("repo/{word}"), "");
    }
    let found = disk.find();
    assert_eq!((found.problems.len(), found.untrusted.len()), (1, 0));
    let problem = found.problems[0].to_string();
    assert!(problem.contains("settings.json:1:") && problem.contains("more than 64 files"), "{problem}");
    // If hooks need no consent, their files need not be pinned.
    disk.settings.trust = config::HookTrust::Run;
    assert_eq!((disk.find().problems.len(), disk.find().hooks.len()), (0, 1));
}

#[test]
fn hooks_of_an_installed_plugin_are_found_with_their_own_names() {
    let disk = Disk::new();
    for name in ["a", "b"] {
        let root = format!("home/plugins/{name}");
        disk.write(&format!("{root}/.claude-plugin/plugin.json"), "{}");
        let line = "${CLAUDE_PLUGIN_ROOT}/check.sh";
        let hooks = json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": line}]}]}});
        disk.write(&format!("{root}/hooks/hooks.json"), &hooks.to_string());
    }
    let found = disk.find();
    assert_eq!(names(&found), ["Stop#1@plugin a", "Stop#1@plugin b"], "{:?}", found.skipped);
    let HookKind::Claude { options, .. } = &found.hooks[0].kind else { panic!("{:?}", found.hooks) };
    assert_eq!(options.plugin.as_ref().map(|plugin| plugin.root.clone()), Some(disk.at("home/plugins/a")));
}

/// The line is trusted while its script is missing; a script added later must not inherit that consent.
#[test]
fn a_named_script_that_is_added_later_is_a_change() {
    let disk = Disk::new();
    let line = "test -x tools/check && tools/check";
    let settings = json!({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": line}]}]}});
    disk.write("repo/.claude/settings.json", &settings.to_string());
    disk.allow_all();
    let hook = disk.find().hooks.remove(0);
    disk.program("repo/tools/check", "#!/bin/sh\n");
    assert!(!unchanged(&hook));
}

#[test]
fn the_users_own_settings_need_no_consent_and_can_disable_all_hooks() {
    let disk = Disk::new();
    let hooks = json!({"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]});
    disk.write(".claude/settings.json", &json!({"hooks": hooks}).to_string());
    disk.write("repo/.claude/settings.json", &json!({"hooks": hooks}).to_string());
    let found = disk.find();
    assert_eq!((found.hooks.len(), found.hooks[0].origin, found.untrusted.len()), (1, HookOrigin::User, 1));
    disk.write(".claude/settings.json", &json!({"hooks": hooks, "disableAllHooks": true}).to_string());
    let found = disk.find();
    assert_eq!((found.hooks.len(), found.untrusted.len()), (0, 0));
    assert!(found.skipped[0].reason.contains("disableAllHooks"), "{:?}", found.skipped);
}

#[test]
fn a_session_in_the_home_directory_finds_only_the_users_hooks() {
    let disk = Disk::new();
    disk.script(".kodelet/hooks/old", "turn_end");
    let found = disk.find_in("", &disk.trust());
    assert_eq!((names(&found), found.untrusted.len()), (vec!["old"], 0));
}

#[test]
fn a_damaged_manifest_cache_is_rebuilt() {
    let disk = Disk::new();
    disk.marking("home/hooks/a", "turn_end");
    disk.find();
    disk.write("home/data/hooks-cache.json", "{\"x\":");
    assert_eq!(names(&disk.find()), ["a"]);
    disk.find();
    assert_eq!(disk.marks(), 2);
}

#[test]
fn hook_folders_and_the_trust_store_are_watched() {
    let disk = Disk::new();
    disk.script("repo/.epitome/hooks/lint", "turn_end");
    disk.script("home/plugins/mine/hooks/notify", "turn_end");
    let plan = watched(&disk.at("repo"), &disk.paths(), true);
    for folder in ["repo/.epitome/hooks", "home/plugins/mine/hooks", "repo"] {
        assert!(plan.directories.contains(&disk.at(folder)), "{folder}: {plan:?}");
    }
    for path in [
        "repo/.epitome/hooks/new",
        "repo/.claude/settings.json",
        "home/data/trust.json",
        "home/plugins/mine/hooks/x",
    ] {
        assert!(plan.concerns(&disk.at(path)), "{path}");
    }
    assert!(!plan.concerns(&disk.at("repo/src/main.rs")));
}

/// Runs `epitome hooks`; returns exit code, stdout and stderr.
fn epitome(disk: &Disk, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = User::new().command(arguments);
    command.current_dir(disk.at("repo")).env("EPITOME_HOME", disk.at("home")).env("HOME", disk.at(""));
    let ran = Ran::from(command.output().expect("the program starts"));
    (ran.code, ran.out, ran.err)
}

#[test]
fn the_command_line_lists_trusts_and_refuses_hooks() {
    let disk = Disk::new();
    disk.marking("repo/.epitome/hooks/lint", "turn_end");
    disk.marking("repo/.epitome/hooks/push", "agent_stop");
    disk.script("home/hooks/guard", r#"{"events":["tool.call"],"description":"keeps secrets in"}"#);
    disk.write("home/hooks/README.md", "");
    disk.write("home/hooks/bad.yaml", "events: [never]\nthen: {}\n");
    let (code, out, err) = epitome(&disk, &["hooks", "list"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for part in [
        "guard  before_tool_call",
        "keeps secrets in",
        "Not trusted yet",
        "lint",
        "README.md: a text",
        "bad.yaml:1:9: there is no event",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }

    let (code, _, err) = epitome(&disk, &["hooks", "trust", "lint"]);
    assert!(code == Some(1) && err.contains("--yes"), "nobody can be asked: {err}");
    assert_eq!(disk.marks(), 0);
    assert_eq!(epitome(&disk, &["hooks", "trust", "lint", "--yes"]).1, "allowed lint\n");
    assert_eq!(
        epitome(&disk, &["hooks", "trust", ".epitome/hooks/push", "--never", "--yes"]).1,
        "refused push\n"
    );
    assert_eq!(epitome(&disk, &["hooks", "trust", "--yes"]).1, "No hook is waiting for a decision.\n");
    let (_, out, _) = epitome(&disk, &["hooks", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&out).expect("it is one object");
    let names: Vec<&str> =
        listed["hooks"].as_array().expect("a list").iter().filter_map(|hook| hook["name"].as_str()).collect();
    assert_eq!(names, ["lint", "guard"]);
    assert_eq!((listed["untrusted"].as_array().map(Vec::len), disk.marks()), (Some(0), 1));
}

/// Regression: `epitome hooks test` sent a resident hook its bare payload, as if it were a one-shot script, and the
/// hook could not answer.
#[test]
fn hooks_try_sends_one_request_to_a_resident_hook() {
    let disk = Disk::new();
    disk.program(
        "home/hooks/guard",
        "#!/bin/sh\nif [ \"$1\" = hook ]; then\n\
         echo '{\"protocol\":2,\"events\":[\"tool.call\"],\"mode\":\"resident\"}'; exit; fi\n\
         while IFS= read -r line; do case $line in '{\"id\":1,\"payload\":{'*)\n\
         echo hm; echo '{\"id\":1,\"result\":{\"blocked\":true,\"reason\":\"not today\"}}' ;; esac; done\n",
    );
    let (code, out, err) = epitome(&disk, &["hooks", "test", "guard", "tool.call"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for part in ["not today", "end: answered", "a line that is not a JSON object: hm"] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn hooks_try_runs_a_hook_and_shows_the_parsed_result() {
    let disk = Disk::new();
    disk.program(
        "home/hooks/guard",
        "#!/bin/sh\nif [ \"$1\" = hook ]; then echo tool.call; else read -r line; echo \"$line\" >&2; \
         echo '{\"blocked\":true,\"reason\":\"not today\"}'; fi\n",
    );
    let (code, out, err) = epitome(&disk, &["hooks", "test", "guard", "PreToolUse", "--json"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let tried: serde_json::Value = serde_json::from_str(&out).expect("it is one object");
    assert_eq!((&tried["end"], &tried["came"]), (&json!("exit 0"), &json!("result")));
    let payload: serde_json::Value =
        serde_json::from_str(tried["stderr"].as_str().expect("text")).expect("the payload is one object");
    assert_eq!(
        (&payload["event"], &payload["canonical_event"]),
        (&json!("tool.call"), &json!("before_tool_call"))
    );
    assert!(tried["meaning"].to_string().contains("not today"), "{tried}");

    let given = disk.write("payload.json", "{\"mine\":1}");
    let (_, out, _) =
        epitome(&disk, &["hooks", "test", "guard", "tool.call", "--payload", given.to_str().expect("UTF-8")]);
    for part in ["{\"mine\":1}", "meaning:", "not today", "end: exit 0"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let broken = disk.write("broken.json", "{\"mine\":");
    let broken = broken.to_str().expect("UTF-8");
    let (code, out, err) = epitome(&disk, &["hooks", "test", "guard", "tool.call", "--payload", broken]);
    assert!(code == Some(1) && out.is_empty() && err.contains("broken.json is not JSON: EOF"), "{out}{err}");
    for (arguments, message) in [
        (["hooks", "test", "guard", "turn_end"], "guard does not handle turn_end"),
        (["hooks", "test", "gard", "turn_end"], "there is no hook gard here"),
        (["hooks", "test", "guard", "sometime"], "there is no event \"sometime\""),
    ] {
        let (code, _, err) = epitome(&disk, &arguments);
        assert!(code == Some(1) && err.contains(message), "{err}");
    }
}

#[test]
fn hooks_log_shows_the_trail_of_a_session() {
    let disk = Disk::new();
    assert!(epitome(&disk, &["hooks", "log"]).2.contains("this directory has no sessions"));
    let store = Store::new(&disk.paths());
    let session = SessionId("s_0123456789abcdef0123".to_owned());
    let opened = Change::Opened { format: FORMAT_VERSION, session: session.clone(), cwd: disk.at("repo") };
    let (mut journal, _) = store.create(&session, opened).expect("it is new");
    let run = HookRun {
        hook: "guard".to_owned(),
        event: "tool.call".to_owned(),
        milliseconds: 12,
        end: "exit 0".to_owned(),
        asked: "block".to_owned(),
        verdict: epitome::thread::HookRunResult::Done,
        remarks: vec!["not today".to_owned()],
        ..HookRun::default()
    };
    let hooked = Change::Hooked { event: "before_tool_call".to_owned(), runs: vec![run] };
    journal.append(hooked).expect("it is written");
    let ended = Change::TurnEnded {
        reason: StopReason::EndTurn,
        usage: Usage::default(),
        quiet_hooks: 3,
        failure: None,
    };
    journal.append(ended).expect("it is written");
    drop(journal);
    store.settle();
    let wanted = "e1  before_tool_call  guard  done: block (exit 0, 12 ms)\n    not today\n\
                  e2  3 runs of hooks did nothing\n";
    for arguments in [&["hooks", "log"][..], &["hooks", "log", "--newest"], &["hooks", "log", "0123"]] {
        let (code, out, err) = epitome(&disk, arguments);
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), wanted, ""), "{arguments:?}");
    }
    let (_, out, _) = epitome(&disk, &["hooks", "log", "--json"]);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect();
    assert_eq!((&lines[0]["run"]["hook"], &lines[1]["quiet"]), (&json!("guard"), &json!(3)));
}

/// Each of many hooks is probed once; afterwards only its files are checked.
#[test]
fn two_hundred_hooks_are_probed_once() {
    let mut disk = Disk::new();
    disk.settings.trust = config::HookTrust::Run;
    for number in 0..100 {
        disk.marking(&format!("home/hooks/h{number:03}"), "turn_end");
        disk.marking(&format!("repo/.epitome/hooks/r{number:03}"), "turn_end");
    }
    assert_eq!((disk.find().hooks.len(), disk.marks()), (200, 200));
    assert_eq!((disk.find().hooks.len(), disk.marks()), (200, 200));
}
