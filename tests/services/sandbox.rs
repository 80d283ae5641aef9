//! The restrictions of the sandbox: each row is an action that a command attempts. On a kernel without the required
//! features, a test prints a message and passes.

mod links;
mod programs;
mod replaced;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::thread::{Mode, OutcomeContent, OutcomeStatus};
use epitome::tools::reaper::Reaper;
use epitome::tools::sandbox::{Namespaces, SandboxRules, support};
use epitome::tools::{ToolContext, ToolResult, Toolbox, Workspace};
use epitome_test_harness::{WITHIN, own_process, user};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A home with secrets, a workspace with a repository, files next to them, and a temporary directory.
struct Place {
    root: PathBuf,
    workspace: Workspace,
    tools: Toolbox,
    rules: SandboxRules,
    _directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        for (path, text) in [
            ("home/.ssh/id_ed25519", "the-private-key\n"),
            ("home/.aws/credentials", "the-aws-key\n"),
            ("home/.netrc", "the-password\n"),
            ("home/.bashrc", "# mine\n"),
            ("home/.cache/pip/x", ""),
            ("home/.cargo/registry/x", ""),
            ("home/notes.txt", "a note\n"),
            ("home/.epitome/config.toml", "the-header\n"),
            ("home/.epitome/data/log", "the-log\n"),
            ("home/w/.git/HEAD", "ref: refs/heads/main\n"),
            ("home/w/.git/config", "[core]\n"),
            ("home/w/.git/hooks/pre-commit.sample", "#!/bin/sh\n"),
            ("home/w/.git/objects/x", ""),
            ("home/w/.git/modules/lib/HEAD", "ref: refs/heads/main\n"),
            ("home/w/.git/modules/lib/config", "[core]\n"),
            ("home/w/.git/worktrees/t/commondir", "../..\n"),
            ("home/w/.epitome/hooks/a", "#!/bin/sh\n"),
            ("home/w/.envrc", "# mine\n"),
            ("home/w/src/main.rs", "fn main() {}\n"),
            ("beside/file", "beside\n"),
            ("tmp/x", ""),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("it is below the root")).expect("made");
            fs::write(path, text).expect("written");
        }
        let home = root.join("home");
        let environment = vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
            ("HOME".into(), home.clone().into_os_string()),
            ("TMPDIR".into(), root.join("tmp").into_os_string()),
        ];
        Place {
            workspace: Workspace::new(home.join("w"), Vec::new(), Arc::new(environment)),
            tools: Toolbox::built_in(Arc::new(Reaper::with_program(user::program()))),
            rules: SandboxRules {
                enabled: true,
                hide: vec![home.join(".epitome/data"), home.join(".epitome/config.toml")],
                ..SandboxRules::default()
            },
            root,
            _directory: directory,
        }
    }

    fn work_in(&mut self, cwd: PathBuf) {
        self.workspace = Workspace::new(cwd, Vec::new(), self.workspace.environment.clone());
    }

    async fn call(&self, mode: Mode, input: Value) -> ToolResult {
        let context = ToolContext {
            mode,
            sandbox: Arc::new(self.rules.clone()),
            ..ToolContext::bare(Arc::new(self.workspace.clone()))
        };
        let run = self.tools.get("bash").expect("a built-in tool").run(input, context);
        tokio::time::timeout(WITHIN, run).await.expect("it ends in time")
    }

    async fn bash(&self, line: &str) -> ToolResult {
        self.call(Mode::Ask, json!({"description": "a test", "command": line})).await
    }

    /// Runs a command that the user has allowed to change the repository.
    async fn bash_on_git(&self, line: &str) -> ToolResult {
        let input = json!({"description": "a test", "command": line, "changes_git": true});
        self.call(Mode::Ask, input).await
    }
}

fn text(result: &ToolResult) -> &str {
    match &result.content[0] {
        OutcomeContent::Text { text } => text,
        OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => panic!("no text: {result:?}"),
    }
}

/// Whether the system has the features that a test needs; prints a message if not.
fn has(what: &str, there: bool) -> bool {
    if !there {
        eprintln!("skipped: this system has no {what} ({})", support().words());
    }
    there
}

fn has_landlock() -> bool {
    has("landlock", support().landlock > 0)
}

fn has_namespaces() -> bool {
    has("namespaces", support().namespaces != Namespaces::None)
}

fn has_program(name: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|directory| directory.join(name).is_file());
    has(name, found)
}

/// Runs each line as a command that may change the repository, and asserts whether it succeeds.
async fn hold_on_git(place: &Place, rows: &[(&str, bool)]) {
    for (line, works) in rows {
        let result = place.bash_on_git(line).await;
        assert_eq!(result.status == OutcomeStatus::Completed, *works, "{line}: {}", text(&result));
    }
}

/// Runs each line and asserts whether it succeeds.
async fn hold(place: &Place, rows: &[(&str, bool)]) {
    for (line, works) in rows {
        let result = place.bash(line).await;
        assert_eq!(result.status == OutcomeStatus::Completed, *works, "{line}: {}", text(&result));
    }
}

/// Regression: a home below a directory for temporary files could be changed, including the hooks in it, which run outside
/// of the sandbox.
#[tokio::test]
async fn a_home_in_a_directory_for_temporary_files_stays_as_it_is() {
    if !has_landlock() || !has_namespaces() {
        return;
    }
    let mut place = Place::new();
    place.rules.settings = Some(place.root.join("home/.epitome"));
    place.rules.temporary = vec![place.root.clone()];
    hold(
        &place,
        &[
            ("echo x > new && echo x > \"$TMPDIR/new\" && echo x > ../../new", true),
            ("echo x > ~/.cache/pip/new", true),
            ("echo x >> ~/.bashrc", false),
            ("mkdir ~/.epitome/hooks", false),
            ("mv ~ ~/../elsewhere", false),
        ],
    )
    .await;
    place.rules.temporary = vec![place.root.join("home")];
    hold(
        &place,
        &[
            ("echo x > ~/new", true),
            ("mkdir ~/.epitome/hooks", false),
            ("mv ~/.epitome ~/elsewhere", false),
            ("echo x > ~/.claude/settings.json", false),
        ],
    )
    .await;
}

/// Regression: a fork bomb was only stopped by the system's process limit. This one exceeds the sandbox's limit, with
/// few enough processes to be harmless if there is no limit.
#[tokio::test]
async fn the_number_of_processes_of_a_command_is_limited() {
    if !has("user namespace of an ordinary user", support().namespaces.count_processes())
        || !has_program("python3")
    {
        return;
    }
    let mut place = Place::new();
    place.rules.processes = Some(64);
    let forks = "import os
n = 0
while n < 150:
  try: pid = os.fork()
  except OSError: break
  if pid == 0:                  os.read(os.pipe()[0], 1)
  n += 1
print(n)";
    let forked = place.bash(&format!("python3 -c '{forks}'")).await;
    let count: u32 = text(&forked).lines().next().and_then(|line| line.parse().ok()).expect("a number");
    assert!((40..64).contains(&count), "{forked:?}");
    let raised = place.bash("ulimit -u 100000 && echo raised").await;
    assert!(!text(&raised).contains("raised"), "{raised:?}");
    place.rules.processes = None;
    let unbounded = place.bash("ulimit -Hu").await;
    assert_ne!(text(&unbounded).lines().next(), Some("64"), "{unbounded:?}");
}

#[tokio::test]
async fn commands_read_everything_but_secrets() {
    if !has_landlock() {
        return;
    }
    let place = Place::new();
    hold(
        &place,
        &[
            ("cat src/main.rs ../notes.txt ../../beside/file /etc/passwd > /dev/null", true),
            ("ls ~ / /usr/bin > /dev/null", true),
            ("cat ~/.ssh/id_ed25519", false),
            ("cat ~/.aws/credentials", false),
            ("cat ~/.netrc", false),
            ("cat ~/.epitome/config.toml", false),
            ("cat ~/.epitome/data/log", false),
            ("cd ~/.ssh && cat id_ed25519", false),
            ("cat ../.ssh/../.ssh/id_ed25519", false),
            ("ln -s ~/.ssh/id_ed25519 link && cat link", false),
            ("ln -s ~/.ssh d && cat d/id_ed25519", false),
            ("ln ~/.ssh/id_ed25519 hard && cat hard", false),
            ("mv ~/.ssh moved && cat moved/id_ed25519", false),
            ("cp -r ~/.ssh copied && cat copied/id_ed25519", false),
            ("cat /proc/self/root$HOME/.ssh/id_ed25519", false),
            ("bash -c 'bash -c \"cat ~/.ssh/id_ed25519\"'", false),
            ("tar cf - -C ~ .ssh | grep -q the-private-key", false),
            ("test -e /dev/sda && head -c1 /dev/sda", false),
            ("test -e /dev/vda && head -c1 /dev/vda", false),
        ],
    )
    .await;
}

#[tokio::test]
async fn commands_change_only_the_workspace_temporary_files_and_caches() {
    if !has_landlock() {
        return;
    }
    let place = Place::new();
    hold(
        &place,
        &[
            ("echo x > new && mkdir -p a/b && mv new a/b/ && echo y >> src/main.rs && rm -r a", true),
            ("f=$(mktemp) && echo x > $f && rm $f", true),
            ("echo x > ~/.cache/pip/y && echo x > ~/.cargo/registry/y", true),
            ("echo x > /dev/null && echo x > /dev/shm/$$ && rm /dev/shm/$$", true),
            ("echo x > /dev/stdout", true),
            ("test ! -e /usr/bin/script || script -qc true /dev/null", true),
            ("echo x > ~/new", false),
            ("echo x >> ~/.bashrc", false),
            ("echo x > ~/.ssh/authorized_keys", false),
            ("echo x > ../../beside/new", false),
            ("rm ../../beside/file", false),
            ("mv ../../beside/file .", false),
            ("truncate -s0 ../../beside/file", false),
            ("ln -s ../../../beside/file out && echo x > out", false),
            ("ln -s ../../../beside dir && echo x > dir/new", false),
            ("mkdir ~/.config", false),
            ("echo x > /etc/epitome-was-here", false),
            ("mknod node b 8 0", false),
        ],
    )
    .await;
    assert_eq!(fs::read_to_string(place.root.join("beside/file")).expect("it is there"), "beside\n");
    assert_eq!(fs::read_to_string(place.root.join("home/.bashrc")).expect("it is there"), "# mine\n");
}

/// Commands could change the programs that `npx`, `uvx` and `pnpm dlx` keep in their caches and start later without a
/// check. Most MCP servers are started like that, outside of the sandbox.
#[tokio::test]
async fn programs_in_caches_of_package_managers_are_read_only() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    for path in [
        ".npm/_cacache/x",
        ".npm/_logs/x",
        ".npm/_npx/a1/node_modules/server/index.js",
        ".cache/uv/archive-v0/b2/bin/server",
        ".cache/uv/environments-v2/x",
        ".cache/pnpm/metadata/x",
        ".cache/pypoetry/cache/x",
        ".cache/pypoetry/virtualenvs/other/bin/python",
        ".cache/rattler/cache/pkgs/x",
        ".cache/rattler/cache/cached-envs-v0/x",
        ".cache/deno/npm/x",
    ] {
        let path = place.root.join("home").join(path);
        fs::create_dir_all(path.parent().expect("it is below")).expect("made");
        fs::write(path, "mine").expect("written");
    }
    hold(
        &place,
        &[
            ("echo x > ~/.npm/_cacache/y && echo x > ~/.npm/_logs/y", true),
            ("echo x > ~/.cache/pnpm/metadata/y && echo x > ~/.cache/pypoetry/cache/y", true),
            ("echo x > $UV_CACHE_DIR/y", true),
            (
                "test $UV_CACHE_DIR = ~/.cache/epitome/uv && cat ~/.npm/_npx/a1/node_modules/server/index.js",
                true,
            ),
            ("echo x > ~/.npm/_npx/a1/node_modules/server/index.js", false),
            ("mkdir ~/.npm/_npx/c3", false),
            ("mv ~/.npm ~/.npm2", false),
            ("echo x > ~/.cache/uv/archive-v0/b2/bin/server", false),
            ("ln -s /tmp ~/.cache/uv/environments-v2/y", false),
            ("mkdir ~/.cache/pnpm/dlx/a", false),
            ("mv ~/.cache/pnpm/dlx ~/.cache/pnpm/old", false),
            ("mv ~/.cache/pnpm ~/.cache/old", false),
            ("echo x > ~/.cache/pypoetry/virtualenvs/other/bin/python", false),
            ("mkdir ~/.cache/rattler/cache/cached-envs-v0/y", false),
            ("echo x > ~/.cache/deno/npm/x", false),
        ],
    )
    .await;
}

/// `go` starts another version of itself from its cache of modules without a check, also when an editor calls it. Commands
/// could change that version, or put one there and ask for it in `go.mod`.
#[tokio::test]
async fn versions_of_go_in_its_cache_are_read_only() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    let program = "go/pkg/mod/golang.org/toolchain@v0.0.1-go1.30.0.linux-amd64/bin/go";
    let path = place.root.join("home").join(program);
    fs::create_dir_all(path.parent().expect("it is below")).expect("made");
    fs::write(path, "mine").expect("written");
    hold(
        &place,
        &[
            ("cd ~/go/pkg/mod && mkdir -p golang.org/x/a cache/download/golang.org/x/a example.com/a", true),
            (&format!("cat ~/{program} && echo x > ~/{program}"), false),
            ("mkdir ~/go/pkg/mod/golang.org/toolchain@v0.0.1-go1.31.0.linux-amd64", false),
            ("mkdir ~/go/pkg/mod/cache/download/golang.org/toolchain", false),
            ("mv ~/go/pkg/mod/golang.org ~/go/pkg/mod/old", false),
            ("mv ~/go/pkg/mod/cache ~/go/pkg/mod/old", false),
            ("mv ~/go/pkg/mod ~/go/pkg/old", false),
        ],
    )
    .await;
}

/// pnpm, Bun, Conda and pixi install programs as hard links to the files of their stores, which commands could change: the
/// user's next call of an installed program ran what the command had written.
#[tokio::test]
async fn stores_that_share_files_with_installed_programs_are_read_only() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    for store in [
        ".local/share/pnpm/store",
        ".pnpm-store",
        ".bun/install/cache",
        ".conda/pkgs",
        ".cache/rattler/cache/pkgs",
    ] {
        let directory = place.root.join("home").join(store);
        fs::create_dir_all(&directory).expect("made");
        fs::write(directory.join("file"), "mine").expect("written");
        fs::hard_link(directory.join("file"), place.root.join("home/installed")).expect("linked");
        hold(&place, &[(&format!("cat ~/{store}/file && echo x > ~/{store}/file"), false)]).await;
        assert_eq!(fs::read(place.root.join("home/installed")).expect("read"), b"mine");
        fs::remove_file(place.root.join("home/installed")).expect("removed");
    }
}

/// Regression: since these stores are read-only, commands with a network could not install packages.
#[tokio::test]
async fn commands_with_a_network_install_packages_into_separate_caches() {
    if !has_namespaces() {
        return;
    }
    let mut place = Place::new();
    for directory in [".bun", ".conda", ".cache/rattler"] {
        fs::create_dir_all(place.root.join("home").join(directory)).expect("made");
    }
    let line = "for of in \"$BUN_INSTALL_CACHE_DIR\" \"$CONDA_PKGS_DIRS\" \"$RATTLER_CACHE_DIR\"; do
        case $of in */home/.cache/epitome/*) echo x > \"$of/new\" || exit 1;; *) exit 1;; esac
    done";
    hold(&place, &[(line, false)]).await;
    place.rules.network = true;
    hold(&place, &[(line, true)]).await;
}

/// Regression: in a session above a bare clone that has its worktrees in it, all of them were read-only.
#[tokio::test]
async fn worktrees_in_a_bare_clone_stay_writable() {
    if !has_namespaces() {
        return;
    }
    let mut place = Place::new();
    let above = place.root.join("home/src");
    for (path, text) in [
        ("b.git/HEAD", "ref: refs/heads/main\n"),
        ("b.git/config", "[core]\n\tbare = true\n"),
        ("b.git/hooks/x", ""),
        ("b.git/worktrees/t/commondir", "../..\n"),
        ("b.git/t/.git", "gitdir: ../worktrees/t\n"),
    ] {
        let path = above.join(path);
        fs::create_dir_all(path.parent().expect("it is below")).expect("made");
        fs::write(path, text).expect("written");
    }
    place.work_in(above);
    hold(
        &place,
        &[
            ("echo x > b.git/t/new && mkdir b.git/t/made && echo x > new", true),
            ("echo x >> b.git/config", false),
            ("echo x > b.git/hooks/pre-commit", false),
            ("echo x > b.git/t/.git", false),
            ("mv b.git/t b.git/u", false),
            ("mv b.git c.git", false),
        ],
    )
    .await;
}

#[tokio::test]
async fn files_that_run_later_are_protected_in_the_workspace() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    let evil = "printf '#!/bin/sh\\n' > .git/hooks/pre-commit";
    hold_on_git(
        &place,
        &[
            ("echo x > .git/index && echo x > .git/objects/y && rm .git/index", true),
            ("cat .git/config .git/hooks/pre-commit.sample .envrc > /dev/null", true),
            (evil, false),
            // Each command runs with a copy of this file.
            ("echo '[core] evil' > .git/config", true),
            ("echo x > .git/c && mv .git/c .git/config", false),
            ("rm -rf .git/hooks && test ! -e .git/hooks", false),
            ("mv .git/hooks .git/old", false),
            ("mv .git old", false),
            ("echo evil > .git/commondir", false),
            ("echo evil > c && mv c .git/commondir", false),
            ("rm .git/commondir", false),
            ("echo evil > .git/modules/lib/commondir", false),
            ("mv .git/modules m && mkdir -p .git/modules/lib && echo x > .git/modules/lib/config", false),
            ("echo evil > .git/worktrees/t/commondir", false),
            (
                "mv .git/worktrees w && mkdir -p .git/worktrees/t && echo x > .git/worktrees/t/commondir",
                false,
            ),
            ("rm -rf .git 2> /dev/null; test -e .git/hooks/pre-commit.sample", true),
            ("echo x > .envrc", false),
            ("rm .envrc", false),
            ("mv .envrc .e", false),
            ("ln -sf /tmp/x .envrc", false),
            ("echo x > .epitome/hooks/b", false),
            ("mv .epitome e", false),
            ("umount .git/hooks", false),
            ("mount -o remount,rw,bind .git/hooks", false),
            ("unshare -Urm sh -c 'mount -o remount,rw,bind .git/hooks && echo x > .git/hooks/y'", false),
        ],
    )
    .await;
    let hooks: Vec<_> = fs::read_dir(place.root.join("home/w/.git/hooks"))
        .expect("it is there")
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    assert_eq!(hooks, ["pre-commit.sample"]);
    assert_eq!(fs::read_to_string(place.root.join("home/w/.git/config")).expect("it is there"), "[core]\n");
    assert_eq!(fs::read_to_string(place.root.join("home/w/.envrc")).expect("it is there"), "# mine\n");
}

#[tokio::test]
async fn a_worktree_commits_into_its_repository_but_not_into_its_hooks() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let mut place = Place::new();
    let outside = place.root.join("beside");
    let made = "git init -q main && cd main && git config user.name a && git config user.email a@b && \
                git commit -q --allow-empty -m one && git worktree add -q ../tree";
    let status = std::process::Command::new("sh").args(["-c", made]).current_dir(&outside).status();
    assert!(status.expect("git runs").success());
    place.work_in(outside.join("tree"));
    hold_on_git(
        &place,
        &[
            ("echo x > x && git add x && git commit -q -m two && git log --oneline | grep -q two", true),
            ("echo x > ../main/.git/hooks/pre-commit", false),
            ("echo 'gitdir: /tmp' > .git", false),
            ("echo x > ../main/x", false),
        ],
    )
    .await;
    let refused = place.bash("git config core.hooksPath /tmp").await;
    assert!(text(&refused).contains("core.hookspath may make Git run a program"), "{}", text(&refused));
}

/// Regression: a command wrote `.git/commondir`, which gave the repository different settings. They named a program
/// that the user's next `git status` ran, outside of the sandbox.
#[tokio::test]
async fn a_command_cannot_replace_a_repositorys_settings_and_git_still_works() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let place = Place::new();
    let cwd = &place.workspace.cwd;
    let sh = |line: &str| {
        let git = std::process::Command::new("sh").args(["-ec", line]).current_dir(cwd).output();
        let output = git.expect("sh runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {printed}{}", String::from_utf8_lossy(&output.stderr));
        printed
    };
    sh("rm -rf .git .epitome .envrc src && git init -q -b main && git config user.name a && git config user.email a@b
        git commit -q --allow-empty -m one && git init -q -b main ../lib
        git -C ../lib -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
        git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -q -m two
        git worktree add -q ../tree");
    let evil = "mkdir -p $DIR/x && cp -r .git/objects .git/refs $DIR/x/ && printf '[core]\\n fsmonitor=\"touch \
                ran; false\"\\n' > $DIR/x/config && echo x > $DIR/commondir";
    for directory in [".git", ".git/modules/lib", ".git/worktrees/tree"] {
        hold_on_git(&place, &[(&evil.replace("$DIR", directory), false)]).await;
    }
    hold(
        &place,
        &[
            ("echo a > a && git add a && git commit -q -m three && git gc -q && git stash list", true),
            ("git branch b && git checkout -q b && git checkout -q main && git branch -d b", true),
            ("cd lib && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m two", true),
            ("git worktree add -q inner && git -C inner status && git submodule status", true),
        ],
    )
    .await;
    assert_eq!(sh("git status --porcelain && git -C ../tree status --porcelain"), " M lib\n?? inner/\n");
    assert_eq!(sh("git -C lib status --porcelain && git log --format=%s"), "three\ntwo\none\n");
    sh("git fsck && git worktree list && git submodule update && test ! -e ran && test ! -e ../tree/ran");
}

/// With a `commondir` file, Git ignores `core.bare`: it would treat the parent directory as a work tree in which all
/// files are deleted.
#[tokio::test]
async fn a_worktree_of_a_bare_repository_commits_and_changes_nothing_else() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let mut place = Place::new();
    let outside = place.root.join("beside");
    let sh = |line: &str| {
        let status = std::process::Command::new("sh").args(["-ec", line]).current_dir(&outside).status();
        assert!(status.expect("sh runs").success(), "{line}");
    };
    sh("git init -q -b main from && git -C from -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
        git clone -q --bare from .bare && echo 'gitdir: ./.bare' > .git && git worktree add -q tree
        git config user.name a && git config user.email a@b");
    place.work_in(outside.join("tree"));
    hold(
        &place,
        &[
            ("echo x > x && git add x && git commit -q -m two && git log --oneline | grep -q two", true),
            ("git branch b && git stash list && git worktree list", true),
            ("echo x > ../.bare/commondir", false),
            ("echo x > ../.bare/hooks/pre-commit", false),
            ("git config core.hooksPath /tmp", false),
            ("echo x > ../.bare/worktrees/tree/commondir", false),
        ],
    )
    .await;
    sh("test $(git rev-parse --is-bare-repository) = true && git -C tree log --oneline | grep -q two");
}

#[tokio::test]
async fn a_home_as_workspace_still_hides_its_secrets() {
    if !has_landlock() {
        return;
    }
    let mut place = Place::new();
    place.work_in(place.root.join("home"));
    let rows = [
        ("cat notes.txt", true),
        ("grep -q the-private-key .ssh/id_ed25519", false),
        ("grep -q the-password .netrc", false),
        ("grep -q the-log .epitome/data/log", false),
        ("mv .ssh other && grep -q the-private-key other/id_ed25519", false),
        ("echo x > .ssh/authorized_keys", false),
        ("echo x > w/new && mkdir w/other", true),
        // Programs run or obey these without being asked.
        ("echo x > .zshrc", false),
        ("mkdir -p .config/autostart", false),
        ("mkdir bin", false),
    ];
    hold(&place, &rows).await;
    assert!(place.root.join("home/.ssh/id_ed25519").exists());
}

#[tokio::test]
async fn there_is_no_network_except_loopback() {
    if !has("filter or namespaces", support().filter || support().namespaces != Namespaces::None)
        || !has_program("python3")
    {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    let path = std::env::temp_dir().join(format!("sandbox-{}.sock", std::process::id()));
    let _ = fs::remove_file(&path);
    let _unix = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let python = |code: String| format!("python3 -c 'import socket as s\n{code}'");
    let connect = python(format!("s.create_connection((\"127.0.0.1\", {port}), 3)"));
    let unix = python(format!("s.socket(s.AF_UNIX).connect(\"{}\")", path.display()));
    let far = python("s.create_connection((\"192.0.2.1\", 80), 3)".to_owned());
    let udp = python("s.socket(s.AF_INET, s.SOCK_DGRAM).sendto(b\"x\", (\"192.0.2.1\", 53))".to_owned());
    let netlink = python("s.socket(s.AF_NETLINK, s.SOCK_RAW)".to_owned());
    let packet = python("s.socket(s.AF_PACKET, s.SOCK_RAW)".to_owned());
    let abstract_one = python("s.socket(s.AF_UNIX).bind(\"\\0x\")".to_owned());
    let pair = python("a, b = s.socketpair()\na.send(b\"x\")".to_owned());
    let own =
        python("l = s.create_server((\"127.0.0.1\", 0))\ns.create_connection(l.getsockname(), 3)".to_owned());
    let mut place = Place::new();
    let cases = [
        (connect.as_str(), false),
        (&far, false),
        (&udp, false),
        (&netlink, false),
        (&packet, false),
        (&unix, false),
        (&abstract_one, false),
        (&pair, true),
        (&own, support().namespaces != Namespaces::None),
    ];
    hold(&place, &cases).await;
    place.rules.network = true;
    hold(&place, &[(&connect, true), (&unix, false), (&packet, false)]).await;
    place.rules.unix_sockets = true;
    hold(&place, &[(&connect, true), (&unix, true)]).await;
    let _ = fs::remove_file(&path);
}

#[tokio::test]
async fn other_processes_are_out_of_reach() {
    if !has_landlock() {
        return;
    }
    let mut other = std::process::Command::new("sleep")
        .arg("60")
        .env("A_KEY", "the-key-of-another")
        .spawn()
        .expect("sleep runs");
    let number = other.id();
    let place = Place::new();
    let environment = format!("tr '\\0' '\\n' < /proc/{number}/environ | grep -q the-key-of-another");
    let root = format!("cat /proc/{number}/root/etc/passwd");
    hold(&place, &[(&environment, false), (&root, false), ("sleep 9 & kill $!", true)]).await;
    if has("signals in landlock", support().landlock >= 6) {
        hold(&place, &[(&format!("kill {number}"), false), ("kill -9 $PPID; test -e /proc/$PPID", true)])
            .await;
        assert!(matches!(other.try_wait(), Ok(None)), "it still runs");
    }
    other.kill().expect("it is ours");
    other.wait().expect("it was killed");
}

#[tokio::test]
async fn commands_cannot_gain_privileges() {
    let place = Place::new();
    if !has("sandbox", support().landlock > 0 || support().filter) {
        return;
    }
    let result = place.bash("grep -E 'NoNewPrivs|CapBnd' /proc/self/status").await;
    assert!(text(&result).contains("NoNewPrivs:\t1"), "{}", text(&result));
    let bounding =
        text(&result).lines().find_map(|line| line.strip_prefix("CapBnd:\t")).expect("it is listed");
    let bounding = u64::from_str_radix(bounding.trim(), 16).expect("a number");
    let is_administrator = rustix::process::geteuid().is_root();
    if is_administrator || support().namespaces == Namespaces::OfUser {
        // The remaining capabilities: changing owners, ignoring modes, sending signals to processes, low ports. Before
        // this list of allowed capabilities, a list of dropped ones omitted real-time priorities, with which a command
        // could freeze the machine.
        assert_eq!(bounding & !0b100_0010_1011, 0, "{bounding:x}");
    }
    if has_program("chrt") {
        let realtime = place.bash("chrt -f 50 true").await;
        assert_eq!(realtime.status, OutcomeStatus::Failed, "{realtime:?}");
    }
    if support().own_processes {
        let first = place.bash("grep CapEff /proc/1/status; grep CapPrm /proc/1/status").await;
        for line in text(&first).lines().filter(|line| line.starts_with("Cap")) {
            let capabilities = line.split_whitespace().next_back().expect("a number");
            let capabilities = u64::from_str_radix(capabilities, 16).expect("a number");
            assert_eq!(capabilities & !0b100_0010_1011, 0, "{line}");
        }
    }
}

#[tokio::test]
async fn a_denied_command_explains_the_sandbox_and_how_to_leave_it() {
    if !has_landlock() {
        return;
    }
    let place = Place::new();
    let result = place.bash("touch ~/new").await;
    assert!(text(&result).contains("outside_sandbox: true"), "{}", text(&result));
    assert_eq!(result.raw.as_ref().map(|raw| raw["sandboxed"].clone()), Some(json!(true)));
    let outside = json!({
        "description": "a test", "command": "touch ~/new", "outside_sandbox": true, "reason": "it is a test"
    });
    let result = place.call(Mode::Ask, outside).await;
    assert_eq!(result.status, OutcomeStatus::Completed, "{}", text(&result));
    let without = json!({"description": "a test", "command": "ls", "outside_sandbox": true, "reason": " "});
    let result = place.call(Mode::Ask, without).await;
    assert!(text(&result).contains("say why"), "{}", text(&result));
}

#[tokio::test]
async fn full_mode_is_sandboxed_only_if_configured() {
    if !has_landlock() {
        return;
    }
    let mut place = Place::new();
    let touch = json!({"description": "a test", "command": "echo x > ~/new"});
    assert_eq!(place.call(Mode::Full, touch.clone()).await.status, OutcomeStatus::Completed);
    place.rules.in_full_mode = true;
    assert_eq!(place.call(Mode::Full, touch).await.status, OutcomeStatus::Failed);
}

/// Runs a script in the workspace as the user does, outside of the sandbox.
fn as_user(place: &Place, script: &str) -> String {
    let mut command = std::process::Command::new("sh");
    command.args(["-ec", script]).current_dir(&place.workspace.cwd).env("HOME", place.root.join("home"));
    let output = command.output().expect("sh runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

/// Regression: a command planted files that made the user's next `git status` or `git commit` run a program with the
/// user's rights. The list of files that commands may not change covered three ways; these are others.
#[tokio::test]
async fn git_runs_nothing_that_a_command_planted() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let new = "rm -rf .git .epitome .envrc src && git init -q -b main . && git config user.name a && git config \
               user.email a@b && echo a > a && git add a && git commit -q -m one";
    let evil = "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = \"touch ~/ran; false\"\\n'";
    let lib = "git init -q ../lib && git -C ../lib -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && \
               git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -q -m two";
    let hook = "printf '#!/bin/sh\\ntouch ~/ran\\n'";
    let rows = [
        (
            "another common directory",
            String::new(),
            format!(
                "mkdir .git/x; cp -r .git/objects .git/refs .git/x/; {evil} > .git/x/config; echo x > .git/commondir"
            ),
        ),
        (
            "a nested repository in the index",
            String::new(),
            format!(
                "mkdir -p v/lib && cd v/lib && git init -q . && git -c user.name=a -c user.email=a@b commit -q \
                 --allow-empty -m x; {evil} > .git/config; cd ../..; git update-index --add --cacheinfo \
                 160000,$(git -C v/lib rev-parse HEAD),v/lib"
            ),
        ),
        (
            "the file that names a submodule's repository",
            lib.to_owned(),
            format!("cp -r .git/modules/lib e; {evil} > e/config; echo \"gitdir: $PWD/e\" > lib/.git"),
        ),
        (
            "the same, far below",
            "git init -q ../lib && git -C ../lib -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && \
             git -c protocol.file.allow=always submodule --quiet add ../lib s/b/c/d/e/f && git commit -q -m two"
                .to_owned(),
            format!("cp -r .git/modules/s/b/c/d/e/f e; {evil} > e/config; echo \"gitdir: $PWD/e\" > s/b/c/d/e/f/.git"),
        ),
        (
            "the settings of a submodule",
            lib.to_owned(),
            format!("{evil} > .git/modules/lib/config; mv .git/modules m && cp -r m .git/modules"),
        ),
        (
            "the settings of a repository below",
            "git init -q b/c/d".to_owned(),
            format!(
                "{evil} > b/c/d/.git/config; {hook} > b/c/d/.git/hooks/pre-commit; chmod +x b/c/d/.git/hooks/*"
            ),
        ),
        (
            "hooks behind a link",
            "rm -rf .git/hooks && mkdir h && ln -s ../h .git/hooks".to_owned(),
            format!(
                "{hook} > h/pre-commit; chmod +x h/pre-commit; rm .git/hooks; mkdir .git/hooks; cp h/* .git/hooks/"
            ),
        ),
        (
            "a directory of hooks that the settings name",
            "mkdir .githooks && git config core.hooksPath .githooks".to_owned(),
            format!(
                "{hook} > .githooks/pre-commit; chmod +x .githooks/pre-commit; mv .githooks g; cp -r g .githooks"
            ),
        ),
        (
            "the same, in a directory that is moved away",
            "mkdir -p t/h && git config core.hooksPath t/h".to_owned(),
            format!("mv t u; mkdir -p t/h; {hook} > t/h/pre-commit; chmod +x t/h/pre-commit"),
        ),
        (
            "the repository, moved away",
            String::new(),
            format!("mv .git g; cp -r g .git; {evil} > .git/config"),
        ),
    ];
    for (name, before, attempt) in rows {
        let place = Place::new();
        as_user(&place, &format!("{new}; {before}"));
        // From a script, as in a build: the command line itself does not mention git.
        fs::write(place.workspace.cwd.join("build.sh"), attempt).expect("written");
        place.bash("sh build.sh").await;
        as_user(
            &place,
            "git status > /dev/null; for d in b/c/d lib; do test -d $d && git -C $d status > /dev/null; done
             git -c core.editor=true commit -q --allow-empty -m next; test ! -d b/c/d || git -C b/c/d -c user.name=a \
             -c user.email=a@b commit -q --allow-empty -m next",
        );
        assert!(!place.root.join("home/ran").exists(), "{name}");
    }
}

/// Everyday Git operations work for commands that the user allows to change the repository.
#[tokio::test]
async fn git_works_in_all_its_forms_with_the_users_consent() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let place = Place::new();
    as_user(
        &place,
        "rm -rf .git .epitome .envrc src && git init -q -b main . && git config user.name a && git config user.email a@b
         git commit -q --allow-empty -m one && git init -q -b main ../lib
         git -C ../lib -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
         git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -q -m two",
    );
    let lines = [
        "echo a > a && git add a && git commit -qm three && git commit -q --amend -m four",
        "git status && git diff && git log --oneline && git show HEAD && git blame a",
        "echo b > a && git stash -q && git stash pop -q && git checkout -q -- a && git restore a",
        "git checkout -q -b topic && echo t > t && git add t && git commit -qm t && git checkout -q main",
        "echo m > m && git add m && git commit -qm m && git checkout -q topic && git rebase -q main",
        "git checkout -q main && git merge -q --no-ff topic -m merged && git tag v1 && git branch -d topic",
        "git revert --no-edit HEAD~1 -m 1 || git revert --abort; git reset -q --hard v1",
        "git checkout -q -b pick HEAD~1 && git cherry-pick v1^2 > /dev/null; git cherry-pick --abort; git checkout -q main",
        "git rebase -q --exec true HEAD~1 && git bisect start > /dev/null && git bisect reset > /dev/null",
        "git worktree add -q wt && git -C wt commit -q --allow-empty -m in-tree && git worktree remove --force wt",
        "git submodule status && git submodule foreach --quiet git status && git add lib && git diff --submodule",
        "cd lib && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inner",
        "git gc -q && git repack -qad && git fsck && git reflog > /dev/null && git notes add -m note",
        "git clone -q . copy && git -C copy log --oneline && rm -rf copy",
        "git init -q fresh && cd fresh && echo x > x && git add x && git -c user.name=a -c user.email=a@b commit -qm x",
        "git archive HEAD | tar t && git format-patch -q -1 -o patches && git bundle create -q all.bundle main",
        "git apply --check patches/*.patch 2> /dev/null; git clean -qn && git mv a moved && git rm -q --cached moved",
    ];
    hold(&place, &lines.map(|line| (line, true))).await;
    // Without the consent, commands can only read repositories.
    fs::write(place.workspace.cwd.join("s.sh"), "git status -s && git diff && git log -1 && git stash list")
        .expect("written");
    hold(&place, &[("sh s.sh", true)]).await;
    fs::write(place.workspace.cwd.join("s.sh"), "git commit -q --allow-empty -m x").expect("written");
    let refused = place.bash("sh s.sh").await;
    assert!(text(&refused).contains("Set it if the command is meant to change"), "{}", text(&refused));
    assert_eq!(place.bash_on_git("sh s.sh").await.status, OutcomeStatus::Completed);
}

/// Git writes settings when a remote is added, an upstream is set or a submodule is updated. All settings used to be
/// read-only, because some of them name programs, so users had to run these commands outside of the sandbox.
#[tokio::test]
async fn settings_that_name_no_program_are_changed_and_others_are_not() {
    if !has_namespaces() || !has_program("git") {
        return;
    }
    let place = Place::new();
    as_user(
        &place,
        "rm -rf .git .epitome .envrc src && git init -q -b main . && git config user.name a && git config user.email a@b
         git commit -q --allow-empty -m one && git init -q -b main ../lib
         git -C ../lib -c user.name=a -c user.email=a@b commit -q --allow-empty -m one
         git -c protocol.file.allow=always submodule --quiet add ../lib lib && git commit -q -m two",
    );
    let file = "git -c protocol.file.allow=always submodule";
    hold(
        &place,
        &[
            ("git config user.name b && test $(git config user.name) = b", true),
            ("git remote add up ../lib && git fetch -q up && git branch -q --set-upstream-to=up/main", true),
            (&format!("{file} update --init --quiet"), true),
            (&format!("git submodule --quiet deinit -f lib && {file} update --init --quiet"), true),
            (&format!("{file} --quiet add ../lib two && git commit -qm three"), true),
            ("git worktree add -q wt && git worktree remove wt", true),
        ],
    )
    .await;
    let settings = as_user(&place, "git config -l --local; git submodule status");
    for expected in [
        "user.name=b",
        "remote.up.url=../lib",
        "branch.main.remote=up",
        "submodule.two.active=true",
        " two (heads/main)",
    ] {
        assert!(settings.contains(expected), "{expected} in {settings}");
    }
    for evil in [
        "git config core.fsmonitor 'touch ~/ran; false' && git remote add evil ../lib",
        "cp .git/config c && printf '[core]\\n\\tfsmonitor = \"touch ~/ran; false\"\\n' >> .git/config; git status",
        "git config include.path ../c && git commit -q --allow-empty -m x",
        "git -C lib config core.fsmonitor 'touch ~/ran; false'",
        "git config submodule.lib.update '!touch ~/ran'",
        "git config core.hooksPath . && git commit -q --allow-empty -m x",
    ] {
        let result = place.bash_on_git(evil).await;
        assert!(text(&result).contains("was left as it was"), "{evil}: {}", text(&result));
    }
    let after =
        as_user(&place, "git status > /dev/null; git -C lib status > /dev/null; git config -l --local");
    assert!(!after.contains("evil") && !place.root.join("home/ran").exists(), "{after}");
    // A nested repository in the index, with its own settings: the user's `git status` runs Git in it.
    let nested = "mkdir -p a/b/c/d/e && cd a/b/c/d/e && git init -q . && git -c user.name=a -c user.email=a@b commit -q \
                  --allow-empty -m x && printf '[core]\\n\\tfsmonitor = \"touch ~/ran; false\"\\n' >> .git/config && \
                  cd - > /dev/null && git update-index --add --cacheinfo 160000,$(git -C a/b/c/d/e rev-parse HEAD),a/b/c/d/e";
    let result = place.bash_on_git(nested).await;
    assert!(text(&result).contains("could make Git run a program: config"), "{}", text(&result));
    as_user(
        &place,
        "git status > /dev/null; git commit -qm nested; git submodule status > /dev/null || true",
    );
    assert!(!place.root.join("home/ran").exists());
    let report = place.bash("git config fetch.prune true").await;
    assert!(text(&report).contains("fetch.prune"), "the user sees what changed: {}", text(&report));
    // A change that the user makes in the meantime is not overwritten.
    let config = place.workspace.cwd.join(".git/config").display().to_string();
    let slow =
        place.bash_on_git("git config fetch.prune false; touch changed; until [ -e done ]; do :; done");
    let user = async {
        while !place.workspace.cwd.join("changed").exists() {
            tokio::task::yield_now().await;
        }
        as_user(&place, &format!("git config -f {config} user.email c@d; touch done"));
    };
    let (slow, ()) = tokio::join!(slow, user);
    assert!(text(&slow).contains("changed in the meantime"), "{}", text(&slow));
    assert!(as_user(&place, "git config -l --local").contains("user.email=c@d"));
}

/// Regression: in a session below /tmp, a command moved the workspace away and replaced it with a link to the home
/// directory. The next command could then change the home directory.
#[tokio::test]
async fn a_workspace_exchanged_for_a_link_is_not_used() {
    if !has_namespaces() {
        return;
    }
    let mut place = Place::new();
    let project = place.root.join("tmp/project");
    fs::create_dir(&project).expect("made");
    place.work_in(project.clone());
    hold(
        &place,
        &[
            ("mv ../project ../old", false),
            ("mv $PWD /tmp/$$", false),
            ("rm -rf ../project", false),
            ("echo x > file", true),
        ],
    )
    .await;
    // A process outside of the sandbox can.
    fs::rename(&project, place.root.join("tmp/old")).expect("renamed");
    std::os::unix::fs::symlink(place.root.join("home"), &project).expect("linked");
    let refused = place.bash("echo evil >> .bashrc").await;
    assert!(text(&refused).contains("was moved away or replaced"), "{}", text(&refused));
    assert_eq!(fs::read_to_string(place.root.join("home/.bashrc")).expect("it is there"), "# mine\n");
}

/// Regression: `chmod 777 ~/.ssh` worked in the sandbox, because Landlock does not restrict changes of modes, owners
/// and timestamps.
#[tokio::test]
async fn modes_owners_and_times_change_only_in_the_workspace() {
    if !has_namespaces() {
        return;
    }
    let place = Place::new();
    hold(
        &place,
        &[
            ("chmod 777 ~", false),
            ("chmod 777 ~/.ssh", false),
            ("chmod 644 ~/.ssh/id_ed25519", false),
            ("chmod 777 ~/.epitome/data", false),
            ("touch -d 2001-01-01 ~/notes.txt", false),
            ("chown $(id -u) ~/notes.txt", false),
            ("chmod 666 /etc/shadow", false),
            ("cp /bin/true t && chmod 4755 t", false),
            // As root: the filter refuses `chmod`, but not the mode of a new file, and root's file stayed setuid.
            (
                "perl -MFcntl -e 'sysopen(F, \"t3\", O_CREAT | O_WRONLY, 04755); syswrite(F, \"x\")'; test -u t3",
                false,
            ),
            ("cp /bin/true t2 && chmod 755 t2 && ./t2 && touch -d 2001-01-01 t2", true),
        ],
    )
    .await;
}

/// Regression: a user's rule `deny Read(private/**)` applied to the file tools, but `grep -r` in a command read the
/// files anyway.
#[tokio::test]
async fn what_deny_rules_name_is_not_read_by_commands() {
    if !has_namespaces() {
        return;
    }
    let mut place = Place::new();
    let cwd = place.workspace.cwd.clone();
    for path in ["private/a", "sub/deep/er/.env", "open/b"] {
        let path = cwd.join(path);
        fs::create_dir_all(path.parent().expect("it is below")).expect("made");
        fs::write(path, "the-denied-text\n").expect("written");
    }
    place.rules.deny_read = vec!["private/**".into(), ".env".into(), "//etc/passwd".into()];
    let read = place.bash("cat private/a sub/deep/er/.env /etc/passwd; grep -rl the-denied-text .").await;
    let lines: Vec<&str> = text(&read).lines().filter(|line| line.starts_with("./")).collect();
    assert_eq!(lines, ["./open/b"], "{}", text(&read));
    assert!(!text(&read).contains("root:"), "{}", text(&read));
}

/// Regression: the first process of a command's namespace was a copy of the daemon, with the keys of model providers in
/// its memory. The command has the same user and Landlock domain, so only the capabilities that this process happened
/// to keep prevented the command from reading it.
#[tokio::test]
async fn a_command_cannot_look_into_the_process_that_started_it() {
    if !has_namespaces() || !has("process namespace", support().own_processes) {
        return;
    }
    let place = Place::new();
    hold(
        &place,
        &[
            ("test -e /proc/1/comm", true),
            ("cat /proc/1/environ | grep -q .", false),
            ("cat /proc/1/maps | grep -q .", false),
            ("head -c1 /proc/1/mem || ls -l /proc/1/exe", false),
            ("test ! -e /usr/bin/gdb || gdb -p 1 -batch -ex 'info registers rip' | grep -q rip", false),
        ],
    )
    .await;
    // Comparing the memory would prove nothing: the helper only knows the command line, which the command's own process
    // contains too.
    let fds = place.bash("ls /proc/self/fd").await;
    assert_eq!(text(&fds).lines().take(4).collect::<Vec<_>>(), ["0", "1", "2", "3"], "{fds:?}");
    assert!(!text(&fds).contains("\n4"), "no descriptor but the listed directory's: {fds:?}");
}

/// Regression: after `mkfifo .git/config` in a workspace without a repository, every later command waited forever for a
/// writer.
#[tokio::test]
async fn pipes_in_place_of_files_of_git_stop_no_command() {
    if !has_namespaces() || !has_program("mkfifo") {
        return;
    }
    let place = Place::new();
    fs::remove_dir_all(place.workspace.cwd.join(".git")).expect("removed");
    let pipes = "mkdir -p .git sub/.git tree && touch sub/.git/HEAD .git/HEAD && mkfifo .git/config .git/index \
                 sub/.git/config sub/.git/index tree/.git";
    for line in [pipes, "true", "true"] {
        assert_eq!(place.bash(line).await.status, OutcomeStatus::Completed, "{line}");
        assert_eq!(place.bash_on_git("true").await.status, OutcomeStatus::Completed, "{line}");
    }
}

/// Regression: a command could use all memory of the machine, also when run as root.
#[tokio::test]
async fn a_command_that_uses_too_much_memory_is_ended() {
    if !has("process namespace", support().own_processes) || !has_program("python3") {
        return;
    }
    let mut place = Place::new();
    place.rules.memory = Some(96 << 20);
    // Only both processes together exceed the limit.
    let allocate = "python3 -c 'import time; a = bytearray(60 << 20); time.sleep(20)'";
    let ended = place.bash(&format!("{allocate} & {allocate}")).await;
    assert!(text(&ended).contains("more than 96 MiB of memory"), "{ended:?}");
    assert_eq!(ended.status, OutcomeStatus::Failed);
    let works = place
        .bash("python3 -c 'import mmap; mmap.mmap(-1, 1 << 36, mmap.MAP_PRIVATE | 0x20 | 0x4000)'")
        .await;
    assert_eq!(works.status, OutcomeStatus::Completed, "reserved is not used: {works:?}");
    let score = place.bash("cat /proc/self/oom_score_adj").await;
    assert!(text(&score).starts_with("500"), "{score:?}");
}

/// The sandbox uses different kinds of namespaces for root and for an ordinary user, so a run as root also tests the
/// latter.
#[test]
fn the_same_holds_for_an_ordinary_user() {
    const NOBODY: u32 = 65_534;
    if !has("root, who can become somebody else", rustix::process::geteuid().is_root()) {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode;
    let home = scratch.path().join("home");
    // Copied by another process: the kernel refuses to execute a file that a child of this process still has open for
    // writing.
    let copy = |from: PathBuf, name: &str| {
        let to = scratch.path().join(name);
        let copied = std::process::Command::new("cp").arg(from).arg(&to).status().expect("cp runs");
        assert!(copied.success());
        to
    };
    let tests = copy(own_process::program(), "tests");
    let program = copy(user::program(), "epitome");
    fs::create_dir(&home).expect("made");
    fs::set_permissions(&program, open(0o755)).expect("set");
    fs::set_permissions(scratch.path(), open(0o755)).expect("set");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    let mut tests = std::process::Command::new(tests);
    tests
        .arg(module_path!().split_once("::").expect("below the crate").1)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir(&home)
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .env("CARGO_BIN_EXE_epitome", program);
    let output = tests.output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let has_passed = output.status.success() && !printed.contains("running 0 tests");
    assert!(has_passed, "{printed}{}", String::from_utf8_lossy(&output.stderr));
}
