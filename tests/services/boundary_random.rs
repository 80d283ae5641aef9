//! Random attacks from inside the sandbox while the file tools work in the same directories. Nothing outside of the
//! workspace changes, no secret appears in an output, and neither the user's own Git nor a hook runs anything that was planted.
//! Every other attack may change the repositories.
//!
//! An attack is this test program, started by the `bash` tool: it links, renames, exchanges, mounts, opens and changes
//! whatever it can with system calls generated from a seed. `EPITOME_STEPS=1000000 cargo test --test services
//! boundary_random` runs more of them; `EPITOME_SEED=17` starts at that seed instead of 0.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use epitome::hooks::digest::ApprovedScript;
use epitome::store::digest;
use epitome::thread::{Mode, OutcomeStatus};
use epitome::tools::permission::{DiskFacts, PermissionVerdict, decide};
use epitome::tools::reaper::Reaper;
use epitome::tools::sandbox::{Namespaces, SandboxRules, support};
use epitome::tools::{ToolContext, ToolResult, Toolbox, Workspace};
use epitome_test_harness::own_process;
use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

/// Total number of system calls by attacks and calls of tools, unless `EPITOME_STEPS` is set.
const STEPS: u64 = 200_000;

/// System calls per attack.
const STEPS_PER_ATTACK: u64 = 2_000;

/// Maximum number of attacks until each tool has completed a call. On a busy machine, few calls of tools coincide with
/// an attack.
const ATTACKS_MAX: u64 = 10 * STEPS / STEPS_PER_ATTACK;

/// Contained in the files that neither commands nor tools may read.
const SECRET: &str = "SECRET-9c1f";

/// The script that the user has approved.
const APPROVED: &str = "#!/bin/sh\ntrue\n";

/// Lines that random system calls would hardly make: what commands once got through with. Every fourth attack is one of
/// them. In these lines, `hook FILE` plants a program and `evil DIRECTORY` a repository with one in its settings; `link PATH`
/// links to a repository whose last commit is `$H`; `cache` gives one hooks for what is pushed to it.
const LINES: [&str; 35] = [
    // Links to repositories: only in a reflog, in the index, and in more repositories than are searched.
    "evil new; git add new && git commit -qm new && git reset -q --hard HEAD~1",
    "evil more && git add more",
    "for n in 1 2 3 4 5 6 7 8 9; do evil n && (git add n && git commit -qm n) && cd n; git config --unset core.fsmonitor; done; \
     git config core.fsmonitor \"$PLANT; false\"",
    // A `.git` file that Git reads up to a NUL, or with the blank at its end.
    "evil .nul; mkdir nul; printf 'gitdir: ../.nul/.git\\0x\\n' > nul/.git; link nul",
    "evil 'twin '; cp -r 'twin ' twin; git config -f twin/.git/config --unset core.fsmonitor; mkdir wide; mv 'twin /.git' '.wide '; \
     mv twin/.git .wide; printf 'gitdir: ../.wide \\n' > wide/.git; link wide",
    // A repository that a submodule will use.
    "evil s; mkdir -p .git/modules; mv s/.git .git/modules/s; rmdir s || rm -r s; git config -f .gitmodules submodule.s.path s; \
     git config -f .gitmodules submodule.s.url https://s.example/s; link s",
    // Settings that make Git run something.
    "cache; git config remote.up.url ./cache.git",
    "cache; git config remote.up.url https://up.example/x; git config remote.up.pushurl ./cache.git",
    "hook cache.git/hooks/post-commit; git worktree add -q tree -b tree; git config core.hooksPath cache.git/hooks",
    "git config core.fsmonitor \"$PLANT; false\"",
    // A name that is no remote, which Git takes for a directory; a program that a later line switches off.
    "cache; git config branch.main.remote cache.git; git config branch.main.merge refs/heads/main",
    "cache; git config branch.main.pushRemote cache.git",
    "git config user.name q; c=$(readlink -f .git/config); { grep -v planted \"$c\"; printf '[core]\n'; grep planted \"$c\"; } > .c; \
     cat .c > \"$c\"",
    // Files that settings include, also one that an included file includes.
    "git config -f shared/gitconfig core.fsmonitor \"$PLANT; false\"; git config -f .git/more/config core.fsmonitor \"$PLANT; false\"",
    "git config -f shared/missing core.fsmonitor \"$PLANT; false\"; git config -f dot/more core.fsmonitor \"$PLANT; false\"",
    // Unfinished operations that run something as soon as the user continues.
    "git switch -qc topic; echo 1 > one; git add one; git commit -qm 1; GIT_SEQUENCE_EDITOR='sed -i s/^pick/edit/' git rebase -qi HEAD~1; \
     echo \"exec $PLANT\" >> .git/rebase-merge/git-rebase-todo",
    // Hooks.
    "hook .git/hooks/post-commit; mkdir -p .githooks; hook .githooks/post-commit",
    // Links that Git follows when it writes, also for a branch with the name of a directory that is not searched.
    "rm -f .git/logs/HEAD; ln -s ~/.bashrc .git/logs/HEAD",
    "git checkout -q -b hooks/x; rm .git/logs/refs/heads/hooks/x; ln -s ~/.bashrc .git/logs/refs/heads/hooks/x",
    "git checkout -q -b objects/ab/x; rm .git/logs/refs/heads/objects/ab/x; ln -s ~/.bashrc .git/logs/refs/heads/objects/ab/x",
    // Programs that the user's programs find.
    "mkdir -p .venv/bin; hook .venv/bin/env; hook .venv/bin/bash; hook edit",
    "mkdir -p jdk/bin tools; hook jdk/bin/java; hook tools/edit; hook linked",
    "printf '[core]\\n\\tfsmonitor = \"touch ~/planted; false\"\\n' > xdg/git/config",
    // A script that the user has approved, exchanged while it is started.
    "hook evil-check; for n in $(seq 400); do mv -f check ok; mv evil-check check; mv check evil-check; mv ok check; done",
    "hook check",
    // Files of the workspace that links in the home and settings of Git lead to.
    "echo \"$PLANT\" >> dot/ssh; echo \"$PLANT\" >> dot/fish",
    "echo \"$PLANT\" >> dot/profile; git config -f dot/gitconfig core.fsmonitor \"$PLANT; false\"",
    // Logins that are made meanwhile, that variables name, and that are in them; shared memory.
    "for n in $(seq 60); do cat ~/.newtool/login ~/.config/git/credentials ~/.cache/huggingface/token $AWS_CONFIG_FILE; sleep 0.01; done 2>&1",
    "cat ~/moved/kube $KUBECONFIG /dev/shm/epitome-test-*; env",
    "cat ~/moved/tilde ~/moved/vault/* $VAULT_TOKEN_PATH",
    "env -0 | tr '\\0' '\\n'; cat /proc/*/environ",
    "cat ~/.ssh/id ~/.config/gh/hosts.yml ~/.config/fish/fish_variables",
    // Logins that are made while the command starts.
    "for n in $(seq 20); do cat ~/.cache/torch/hub/state ~/.gradle/gradle.properties ~/.newtool/login; sleep 0.01; done 2>&1",
    // The index of another worktree; a remote in a file.
    "git worktree add -q tree -b tree; cd tree; evil inner; link inner",
    "cache; mkdir -p .git/remotes; printf 'URL: cache.git\n' > .git/remotes/up",
];

/// What the lines call.
const FUNCTIONS: &str = r#"
PLANT='touch ~/planted'
hook() { rm -rf "$1.new"; printf '#!/bin/sh\n%s\n' "$PLANT" > "$1.new" && chmod +x "$1.new" && mv -f "$1.new" "$1"; }
evil() {
    rm -rf "$1"; git init -q "$1" && git -C "$1" commit -q --allow-empty -m n && git -C "$1" config core.fsmonitor "$PLANT; false"
    H=$(git -C "$1" rev-parse HEAD)
}
cache() { mkdir -p cache.git/hooks cache.git/.githooks; hook cache.git/hooks/update; hook cache.git/.githooks/update; }
link() { git update-index --add --cacheinfo "160000,$H,$1"; }
"#;

/// Contained in everything that an attack or a tool writes.
const PLANTED: &str = "PLANTED-77";

/// The tools that are called, sorted by name.
const TOOLS: [&str; 6] = ["apply_patch", "file_edit", "file_read", "file_write", "glob_tool", "grep_tool"];

/// Number of completed calls per tool.
static COMPLETED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// The environment variable that contains an attack's seed.
const ATTACK: &str = "EPITOME_TEST_ATTACK";

/// Paths that attacks and tools use, relative to the workspace.
const PATHS: [&str; 55] = [
    "a",
    "b",
    "d",
    "d/e",
    "d/e/f",
    "d/x",
    "e/x",
    "link",
    "link/x",
    "link/.config/gh/hosts.yml",
    "d/hosts.yml",
    ".git",
    ".git/config",
    ".git/hooks",
    ".git/hooks/pre-commit",
    ".git/commondir",
    ".git/index",
    ".git/x/config",
    ".git/worktrees/t/commondir",
    ".git/modules/m/config",
    "lib",
    "lib/.git",
    "lib/.git/config",
    "lib/.git/hooks/pre-commit",
    ".envrc",
    ".vscode",
    ".vscode/tasks.json",
    "../w",
    ".",
    "..",
    "../.bashrc",
    "../.ssh/id",
    "../other/file",
    // Links that Git follows when it writes.
    ".git/logs",
    ".git/logs/HEAD",
    ".git/refs/heads/main",
    ".git/index.lock",
    ".githooks/post-commit",
    // Remotes in files, and a repository for one.
    ".git/remotes/up",
    ".git/branches/up",
    "cache.git/hooks/update",
    // What the user's settings of Git include, and a program in a variable.
    "dot/gitconfig",
    "edit",
    // A script that the user has approved.
    "check",
    // Programs that a hook finds on the `PATH`.
    ".venv/bin",
    ".venv/bin/bash",
    ".venv/bin/env",
    // A login that is made meanwhile, and one that a variable names.
    "../.newtool/login",
    "../moved/kube",
    // What links in the home and on the `PATH` lead to, and what settings include.
    "dot/profile",
    "dot/ssh",
    "linked",
    "shared/gitconfig",
    ".git/more/config",
    "jdk/bin/java",
];

/// A home with secrets, which contains a workspace with repositories.
struct World {
    root: PathBuf,
    workspace: Arc<Workspace>,
    _directory: TempDir,
    /// Shared memory of the user's programs.
    _shared: Option<NamedTempFile>,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        for path in [
            "home/.ssh/id",
            "home/.config/gh/hosts.yml",
            "home/.bashrc",
            "home/other/file",
            "home/other/e/f",
            "home/e/x",
            "home/x",
            "home/moved/kube",
            "home/moved/tilde",
            "moved/vault",
            "moved/aws/readme",
            "home/.newtool/settings",
            "home/.gradle/init.gradle",
            "home/.config/git/ignore",
            "home/.cache/huggingface/datasets",
            "beside/file",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("it is below the root")).expect("made");
            let is_secret =
                ["id", "hosts.yml", "kube", "tilde", "vault"].iter().any(|name| path.ends_with(name));
            fs::write(path, if is_secret { SECRET } else { "anybody may read this\n" }).expect("written");
        }
        for path in [
            "home/w/d/e",
            "home/w/lib",
            "home/w/.vscode",
            "home/w/.venv/bin",
            "home/w/dot",
            "home/w/jdk",
            "home/w/shared",
            "home/w/xdg/git",
            "home/.config/fish/conf.d",
            "bin",
            "tmp",
        ] {
            fs::create_dir_all(root.join(path)).expect("made");
        }
        for path in ["a", "d/e/f", ".envrc", ".vscode/tasks.json"] {
            fs::write(root.join("home/w").join(path), "plain\n").expect("written");
        }
        fs::write(root.join("home/w/dot/gitconfig"), "").expect("written");
        for (file, link) in [
            ("dot/profile", "home/.profile"),
            ("dot/ssh", "home/.ssh/config"),
            ("dot/fish", "home/.config/fish/conf.d/x.fish"),
            ("linked", "bin/linked"),
        ] {
            fs::write(root.join("home/w").join(file), APPROVED).expect("written");
            symlink(root.join("home/w").join(file), root.join(link)).expect("linked");
        }
        for script in ["check", "edit", "linked"] {
            let path = root.join("home/w").join(script);
            fs::write(&path, APPROVED).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
        }
        fs::write(root.join("home/.config/fish/fish_variables"), SECRET).expect("written");
        // Epitome makes it before a command, for copies of Git's settings.
        let staging = root.join("home/.cache/epitome/staging");
        fs::create_dir_all(&staging).expect("made");
        fs::set_permissions(&staging, fs::Permissions::from_mode(0o700)).expect("set");
        let shared = tempfile::Builder::new().prefix("epitome-test-").tempfile_in("/dev/shm").ok();
        if let Some(shared) = &shared {
            fs::write(shared.path(), SECRET).expect("written");
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let settings = "[core]\n\thooksPath = .githooks\n[include]\n\tpath = ~/w/dot/gitconfig\n\tpath = other/gitconfig\n";
        fs::write(root.join("home/.gitconfig"), settings).expect("written");
        fs::write(root.join("home/other/gitconfig"), "[include]\n\tpath = ../w/dot/more\n").expect("written");
        let at = |path: &str| root.join(path).into_os_string();
        let environment = vec![
            ("PATH".into(), format!("{0}/home/w/.venv/bin:{0}/bin:{path}", root.display()).into()),
            ("KUBECONFIG".into(), at("home/moved/kube")),
            ("DOCKER_CONFIG".into(), "~/moved/tilde".into()),
            ("VAULT_TOKEN_PATH".into(), at("moved/vault")),
            ("AWS_CONFIG_FILE".into(), at("moved/aws/login")),
            ("JAVA_HOME".into(), at("home/w/jdk")),
            ("XDG_CONFIG_HOME".into(), at("home/w/xdg")),
            ("VISUAL".into(), "tools/edit".into()),
            ("TRACKER_CREDS".into(), SECRET.into()),
            ("EDITOR".into(), root.join("home/w/edit").into_os_string()),
            ("HOME".into(), root.join("home").into_os_string()),
            ("TMPDIR".into(), root.join("tmp").into_os_string()),
        ];
        let world = World {
            workspace: Arc::new(Workspace::new(root.join("home/w"), Vec::new(), Arc::new(environment))),
            root,
            _directory: directory,
            _shared: shared,
        };
        world.git(&["init", "-q", "-b", "main", "."]);
        world.git(&["init", "-q", "-b", "main", "lib"]);
        world.git(&["init", "-q", "--bare", "cache.git"]);
        // A program that a later line switches off, and files that are included.
        let settings = "[core]\n\tfsmonitor = \"touch ~/planted; false\"\n[core]\n\tfsmonitor = false\n\
                        [include]\n\tpath = ../shared/gitconfig\n\tpath = ../shared/missing\n\tpath = more/config\n";
        let config = world.root.join("home/w/.git/config");
        let config = fs::OpenOptions::new()
            .append(true)
            .open(config)
            .and_then(|mut file| file.write_all(settings.as_bytes()));
        config.expect("written");
        fs::create_dir(world.root.join("home/w/.git/more")).expect("made");
        for at in [".", "lib"] {
            let me = ["-c", "user.name=a", "-c", "user.email=a@b"];
            world.git(&[&["-C", at][..], &me, &["commit", "-q", "--allow-empty", "-m", "one"]].concat());
        }
        world
    }

    /// Runs Git as the user does. It may fail, because attacks delete files that it needs.
    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(&self.workspace.cwd).env("HOME", self.root.join("home"));
        git.envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL"].map(|name| (name, "a@b")));
        git.env("GIT_CONFIG_NOSYSTEM", "1").output().ok();
    }

    /// Logins that are made while an attack runs.
    fn logins(&self) -> [PathBuf; 6] {
        [
            "home/.cache/torch/hub/state",
            "home/.gradle/gradle.properties",
            "home/.newtool/login",
            "home/.config/git/credentials",
            "home/.cache/huggingface/token",
            "moved/aws/login",
        ]
        .map(|path| self.root.join(path))
    }

    /// Starts a script of the repository that the user has approved, outside of the sandbox, if it is still the approved one.
    fn check(&self) {
        let approved = digest(APPROVED.as_bytes());
        let script = ApprovedScript::executable(&self.workspace.cwd.join("check"), &approved);
        if let Ok(Some(copy)) = script.copy(|_| true) {
            let mut check = copy.command();
            assert!(check.env("HOME", self.root.join("home")).status().expect("it starts").success());
        }
    }

    /// Runs a hook of the user.
    fn hook(&self) {
        let mut hook = Command::new("bash");
        let environment = epitome::tools::sandbox::outside(&self.workspace);
        let line = "env true; for tool in $EDITOR $VISUAL ${JAVA_HOME:-/none}/bin/java linked; do $tool; done; git status > /dev/null; true";
        hook.args(["-c", line])
            .current_dir(&self.workspace.cwd)
            .env_clear()
            .stderr(std::process::Stdio::null());
        assert!(hook.envs(environment.iter().cloned()).status().expect("there is a shell").success());
        self.check();
    }

    fn context(&self) -> ToolContext {
        let rules = SandboxRules { enabled: true, ..SandboxRules::default() };
        ToolContext {
            mode: Mode::AcceptEdits,
            sandbox: Arc::new(rules),
            ..ToolContext::bare(self.workspace.clone())
        }
    }

    /// Everything outside of the workspace and the temporary directory: mode, owner, modification time and content.
    fn outside(&self) -> BTreeMap<PathBuf, (u32, u32, i64, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut pending = vec![self.root.clone()];
        while let Some(path) = pending.pop() {
            let metadata = path.symlink_metadata().expect("it is there");
            // A link of the home leads to a file that its programs obey.
            let content = if metadata.is_dir() { Vec::new() } else { fs::read(&path).unwrap_or_default() };
            if ["home/w", "tmp", "home/.cache/epitome/staging"].iter().any(|own| path == self.root.join(own))
            {
                continue;
            }
            if metadata.is_dir() {
                pending.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("read").path()));
            }
            if self.logins().iter().any(|login| login.starts_with(&path) && path.parent() != Some(&self.root))
            {
                continue;
            }
            found.insert(path, (metadata.mode(), metadata.uid(), metadata.mtime_nsec(), content));
        }
        found
    }
}

#[test]
fn nothing_outside_of_the_workspace_changes_or_appears() {
    let needed = support().landlock > 0 && support().namespaces != Namespaces::None;
    if !needed || std::env::var_os(ATTACK).is_some() {
        eprintln!("skipped: this system lacks what the sandbox needs ({})", support().words());
        return;
    }
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let (steps, first) = (number("EPITOME_STEPS").unwrap_or(STEPS), number("EPITOME_SEED").unwrap_or(0));
    let mut seed = first;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let tools =
        Arc::new(Toolbox::built_in(Arc::new(Reaper::with_program(epitome_test_harness::user::program()))));
    let done = Arc::new(AtomicU64::new(0));
    let mut world = World::new();
    // With fewer steps, some tools may not have had a call that can succeed.
    let is_each_called = || steps < STEPS || completed().len() == TOOLS.len();
    let lines = if steps < STEPS { 0 } else { 4 * LINES.len() as u64 };
    while done.load(Ordering::Relaxed) < steps || seed - first < lines || !is_each_called() {
        assert!(
            steps > STEPS || seed - first < ATTACKS_MAX,
            "a tool is never really called: {:?}",
            completed()
        );
        let before = world.outside();
        let printed = runtime.block_on(attack(&world, &tools, seed, &done));
        let context = format!("seed {seed} (EPITOME_SEED={seed} EPITOME_STEPS=1)");
        assert!(!printed.contains(SECRET), "{context}: a secret was read: {printed}");
        for git in [
            &["status"][..],
            &["-C", "lib", "status"],
            &["-C", "tree", "status"],
            &["push", "-q", "up", "HEAD:refs/heads/pushed"],
            &["push", "-q"],
            &["rebase", "--continue"],
            &["submodule", "update", "--init"],
            &["reset", "-q", "--hard", "HEAD@{1}"],
            &["status"],
            &["commit", "-q", "--allow-empty", "-m", "next"],
        ] {
            world.git(git);
        }
        world.hook();
        let after = world.outside();
        for (path, was) in &before {
            assert_eq!(after.get(path), Some(was), "{context}: {} changed", path.display());
        }
        assert_eq!(after.len(), before.len(), "{context}: something is new: {:?}", after.keys());
        // An attack may have emptied the workspace, in which lines would do nothing.
        if seed % 2 == 0 {
            world = World::new();
        }
        seed += 1;
    }
    let done = done.load(Ordering::Relaxed);
    eprintln!("{done} steps in {seed} attacks; calls that completed: {:?}", completed());
}

fn completed() -> BTreeMap<&'static str, u64> {
    COMPLETED.lock().clone()
}

/// Runs an attack and, at the same time, calls of file tools that need no permission. Returns all outputs.
async fn attack(world: &World, tools: &Arc<Toolbox>, seed: u64, done: &Arc<AtomicU64>) -> String {
    let arguments = own_process::arguments(concat!(module_path!(), "::the_attack")).join(" ");
    let line = format!("{ATTACK}={seed} '{}' {arguments}", own_process::program().display());
    let input = json!({"description": "a test", "command": line, "changes_git": seed % 2 == 1});
    // Programs that an earlier attack has planted would run in its sandbox instead of the next one.
    let programs = world.root.join("home/w/.venv/bin");
    drop(fs::remove_dir_all(&programs).and_then(|()| fs::create_dir(&programs)));
    let logins = world.logins();
    logins.iter().for_each(|login| drop(fs::remove_file(login)));
    drop(fs::remove_dir_all(world.root.join("home/.cache/torch")));
    let running = tools.get("bash").expect("a built-in tool").run(input, world.context());
    let ended = Arc::new(AtomicBool::new(false));
    let worker = |number: u64| {
        let (tools, context, ended, done) = (tools.clone(), world.context(), ended.clone(), done.clone());
        tokio::spawn(async move {
            // Different calls in each attack.
            let mut random = fastrand::Rng::with_seed(seed.rotate_left(32) ^ number);
            let mut printed = String::new();
            loop {
                let (name, input) = random_call(&mut random);
                printed += &call(&tools, name, input, &context).await.unwrap_or_default();
                done.fetch_add(1, Ordering::Relaxed);
                if ended.load(Ordering::Relaxed) {
                    return printed;
                }
                tokio::task::yield_now().await;
            }
        })
    };
    let workers = [1, 2, 3].map(worker);
    let started = world.root.join("home/w/started");
    drop(fs::remove_file(&started));
    let line = line_of(seed).unwrap_or_default();
    let log_in = async {
        // A random moment while the command starts, or when it has started.
        let pauses =
            if line.contains("torch") { fastrand::Rng::with_seed(seed).u64(..40_000) } else { u64::MAX };
        for _ in 0..pauses {
            if started.exists() || ended.load(Ordering::Relaxed) {
                break;
            }
            tokio::task::yield_now().await;
        }
        for login in &logins {
            let made = login.parent().map(fs::create_dir_all).expect("it has one");
            made.and_then(|()| fs::write(login, SECRET)).expect("written");
        }
        while line.contains("check") && !ended.load(Ordering::Relaxed) {
            tokio::task::block_in_place(|| world.check());
            tokio::task::yield_now().await;
        }
    };
    let running = async {
        let result = running.await;
        ended.store(true, Ordering::Relaxed);
        result
    };
    let (result, ()) = tokio::join!(running, log_in);
    done.fetch_add(STEPS_PER_ATTACK, Ordering::Relaxed);
    let own = shown(&result);
    assert!(own.contains("attacked"), "seed {seed}: the attack did not run: {own}");
    let mut printed = own;
    for worker in workers {
        printed += &worker.await.expect("no panic");
    }
    printed
}

/// The line that an attack is. Random steps after it would undo what it has done.
fn line_of(seed: u64) -> Option<&'static str> {
    (seed % 4 == 1).then(|| LINES[usize::try_from(seed / 4).expect("it is small") % LINES.len()])
}

fn random_call(random: &mut fastrand::Rng) -> (&'static str, Value) {
    let exchanged =
        ["d/x", "d/file", "d/e/f", "d/e/x", "link/x", "link/id", "d/id", "d/hosts.yml", "d/new", "link/new"];
    let path = match random.bool() {
        true => random.choice(exchanged).expect("there are some"),
        false => random.choice(PATHS).expect("there are some"),
    };
    match random.u8(..6) {
        0 => ("file_write", json!({"file_path": path, "text": PLANTED})),
        1 => ("file_edit", json!({"file_path": path, "old_text": PLANTED, "new_text": "plain"})),
        2 => ("grep_tool", json!({"pattern": "SECRET|hosts", "path": path})),
        3 => ("glob_tool", json!({"pattern": "**/*", "path": path})),
        4 => {
            let patch = format!("*** Begin Patch\n*** Add File: {path}.new\n+{PLANTED}\n*** End Patch");
            ("apply_patch", json!({"input": patch}))
        }
        _ => ("file_read", json!({"file_path": path})),
    }
}

/// Runs a call like a session does, unless it would need a permission request: returns `None` then.
async fn call(tools: &Toolbox, name: &'static str, input: Value, context: &ToolContext) -> Option<String> {
    let tool = tools.get(name).expect("a built-in tool");
    let access = tool.access(&input, &context.workspace).ok()?;
    let facts = DiskFacts::look_up(&access, &context.workspace);
    match decide(&access, context.mode, &[], &context.workspace, &facts) {
        PermissionVerdict::Allow { .. } => {
            let context = ToolContext { decided: Some(Arc::new(access)), ..context.clone() };
            let result = tool.run(input, context).await;
            if result.status == OutcomeStatus::Completed {
                *COMPLETED.lock().entry(name).or_default() += 1;
            }
            Some(shown(&result))
        }
        PermissionVerdict::Ask { .. } | PermissionVerdict::Deny { .. } => None,
    }
}

fn shown(result: &ToolResult) -> String {
    format!("{:?}", result.content)
}

/// The attack. Does nothing unless this process was started as one.
#[test]
fn the_attack() {
    let Some(seed) = std::env::var(ATTACK).ok().and_then(|seed| seed.parse().ok()) else { return };
    let status = fs::read_to_string("/proc/self/status").expect("there is a /proc");
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "only in a sandbox");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = PathBuf::from(std::env::var_os("HOME").expect("it is set"));
    let outside = [
        home.clone(),
        home.join(".ssh"),
        home.join(".config/gh"),
        home.join("other"),
        home.join(".bashrc"),
        home.join("../beside"),
        Path::new("/proc/self/root").join(home.strip_prefix("/").expect("it is absolute")),
        Path::new("/proc/1/root").join(home.strip_prefix("/").expect("it is absolute")),
        PathBuf::from("/proc/self/fd/3"),
    ];
    drop(fs::write("started", ""));
    if let Some(line) = line_of(seed) {
        let mut shell = Command::new("bash");
        let names = ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL"].map(|name| (name, "a@b"));
        let output =
            shell.args(["-c", &format!("{FUNCTIONS}{line}")]).envs(names).output().expect("there is a shell");
        println!("{}", String::from_utf8_lossy(&output.stdout));
    } else if seed % 3 == 0 {
        exchange(&mut random, &outside);
    } else {
        (0..STEPS_PER_ATTACK).for_each(|_| step(&mut random, &outside));
    }
    println!("attacked");
}

/// Repeatedly exchanges a directory for a link that leads out of the workspace, so that code that checks a path and
/// opens it later opens something else. Pauses for random times, so that other code meets both states.
fn exchange(random: &mut fastrand::Rng, outside: &[PathBuf]) {
    for directory in ["d", "link", "d/e"] {
        drop(fs::remove_file(directory));
        drop(fs::create_dir_all(directory));
    }
    drop(symlink(random.choice(outside).expect("there are some"), "out"));
    let directory = random.choice(["d", "link", "d/e"]).expect("there are some");
    for _ in 0..5 * STEPS_PER_ATTACK {
        let _ = rustix::fs::renameat_with(CWD, directory, CWD, "out", RenameFlags::EXCHANGE);
        for turn in 0..random.u32(..1_000) {
            std::hint::black_box(turn);
        }
    }
}

/// Performs one random step, which may fail.
fn step(random: &mut fastrand::Rng, outside: &[PathBuf]) {
    let any = |random: &mut fastrand::Rng| -> PathBuf {
        match random.u8(..4) {
            0 => random
                .choice(outside)
                .expect("there are some")
                .join(random.choice(["", "x", "file", "e/f", "id"]).unwrap()),
            _ => PathBuf::from(random.choice(PATHS).expect("there are some")),
        }
    };
    let (one, two) = (any(random), any(random));
    match random.u8(..22) {
        0 => drop(fs::create_dir_all(&one)),
        1 => drop(fs::remove_file(&one)),
        2 => drop(fs::remove_dir(&one)),
        3 | 4 => drop(fs::rename(&one, &two)),
        5 | 6 => {
            let _ = rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
        }
        7 | 8 => drop(symlink(random.choice(outside).expect("there are some"), &one)),
        9 => drop(symlink(&two, &one)),
        10 => drop(fs::hard_link(&one, &two)),
        11 => drop(fs::write(&one, PLANTED)),
        12 => {
            let evil = "[core]\n\trepositoryformatversion = 0\n\tfsmonitor = \"touch ~/planted; false\"\n";
            let texts = [evil, "gitdir: ../d\n", "URL: cache.git\n", "cache.git\n"];
            drop(fs::write(&one, random.choice(texts).expect("there are some")));
        }
        13 => {
            let hook = fs::write(&one, "#!/bin/sh\ntouch ~/planted\n");
            drop(hook.and_then(|()| fs::set_permissions(&one, fs::Permissions::from_mode(0o755))));
        }
        14 => drop(fs::set_permissions(&one, fs::Permissions::from_mode(random.u32(..0o10000) | 0o700))),
        15 => {
            let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
            drop(fs::File::open(&one).and_then(|file| file.set_times(times)));
        }
        16 => {
            if let Ok(text) = fs::read_to_string(&one) {
                println!("{}", text.lines().next().unwrap_or_default());
            }
        }
        17 => mount(&one, &two, random),
        18 => {
            // SAFETY: system calls with integers.
            unsafe { libc::unshare(*random.choice(&[libc::CLONE_NEWUSER, libc::CLONE_NEWNS]).expect("two")) };
        }
        19 => drop(fs::copy(&one, &two)),
        20 => drop(fs::OpenOptions::new().append(true).open(&one).map(|file| file.set_len(3))),
        _ => drop(std::os::unix::fs::chown(&one, Some(random.u32(..3)), None)),
    }
}

fn mount(one: &Path, two: &Path, random: &mut fastrand::Rng) {
    let text = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero");
    let (one, two) = (text(one), text(two));
    // SAFETY: the kernel reads strings that outlive the calls, or nothing at null.
    unsafe {
        let null = std::ptr::null();
        match random.u8(..4) {
            0 => libc::mount(one.as_ptr(), two.as_ptr(), null, libc::MS_BIND, null.cast()),
            1 => libc::mount(null, two.as_ptr(), null, libc::MS_REMOUNT | libc::MS_BIND, null.cast()),
            2 => libc::umount2(one.as_ptr(), libc::MNT_DETACH),
            _ => libc::chroot(one.as_ptr()),
        };
    }
}
