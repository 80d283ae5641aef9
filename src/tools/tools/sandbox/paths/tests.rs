//! The paths of commands in temporary workspaces and homes.

use std::sync::Arc;

use super::*;
use crate::sandbox::git;

const ALL: Support = Support {
    landlock: 7,
    namespaces: Namespaces::OfUser,
    own_processes: true,
    filter: true,
    seatbelt: false,
};

struct SandboxDisk {
    root: PathBuf,
    _directory: tempfile::TempDir,
}

impl SandboxDisk {
    fn with(files: &[&str]) -> SandboxDisk {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("it is there");
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("it is below")).expect("made");
            match file.ends_with('/') {
                true => fs::create_dir_all(path).expect("made"),
                false => fs::write(path, "").expect("written"),
            }
        }
        SandboxDisk { root, _directory: directory }
    }

    fn workspace(&self, cwd: &str) -> Workspace {
        let home = self.root.join("home");
        let path = home.join("go/bin").into_os_string();
        let environment = vec![("HOME".into(), home.into_os_string()), ("PATH".into(), path)];
        Workspace::new(self.root.join(cwd), Vec::new(), Arc::new(environment))
    }

    /// The paths for a command that may change repositories.
    fn paths(&self, cwd: &str, support: Support) -> SandboxPaths {
        self.places_of(cwd, true, support)
    }

    fn places_of(&self, cwd: &str, changes_git: bool, support: Support) -> SandboxPaths {
        let workspace = self.workspace(cwd);
        let rules =
            SandboxRules { hide: vec![self.root.join("home/.epitome/data")], ..SandboxRules::default() };
        find(&rules, &CommandDisk::new(&workspace), changes_git, &support)
    }

    /// The paths of this disk, without those for what may be created later in a closed directory.
    fn below(&self, paths: &[PathBuf]) -> Vec<String> {
        let below = |path: &PathBuf| {
            let path = path.strip_prefix(&self.root).ok().filter(|path| !path.ends_with(LATER))?;
            Some(path.display().to_string())
        };
        paths.iter().filter_map(below).collect()
    }
}

#[test]
fn workspace_is_writable_except_for_files_executed_later() {
    let disk = SandboxDisk::with(&[
        "w/.git/HEAD",
        "w/.git/config",
        "w/.git/modules/lib/deep/HEAD",
        "w/.envrc",
        "w/.epitome/hooks/a",
        "w/src/.envrc",
        "home/.cache/pip/x",
        "home/.ssh/id",
    ]);
    let paths = disk.paths("w", ALL);
    assert_eq!(disk.below(&paths.writable), ["w", "w/.git", "home/.cache/pip"]);
    let frozen = [
        "w/.envrc",
        "w/.epitome",
        "w/.git/hooks",
        "w/.git/config",
        "w/.git/commondir",
        "w/.git/remotes",
        "w/.git/branches",
        "w/.git/modules/lib/deep/hooks",
        "w/.git/modules/lib/deep/commondir",
        "w/.git/modules/lib/deep/remotes",
        "w/.git/modules/lib/deep/branches",
        "w/src/.envrc",
    ];
    assert_eq!(disk.below(&paths.frozen), frozen);
    let fixed = ["w", "w/.git", "w/.git/modules", "w/.git/modules/lib", "w/.git/modules/lib/deep"];
    assert_eq!(disk.below(&paths.fixed), fixed);
    assert_eq!(disk.below(&paths.hidden), ["home/.ssh"]);
}

/// A list of files that make Git run something was never complete: `commondir`, settings of worktrees, entries of
/// the index for other repositories.
#[test]
fn repositories_are_read_only_unless_the_user_agreed() {
    let disk = SandboxDisk::with(&[
        "w/.git/HEAD",
        "w/.git/hooks/",
        "w/lib/.git",
        "w/a/b/.git/HEAD",
        "w/a/.envrc",
        "h/x",
    ]);
    std::os::unix::fs::symlink("../../h", disk.root.join("w/a/.idea")).expect("linked");
    let paths = disk.places_of("w", false, ALL);
    assert_eq!(disk.below(&paths.writable), ["w"]);
    let frozen = ["w/.git", "w/a/.envrc", "h", "w/a/.idea", "w/a/b/.git", "w/lib/.git"];
    assert_eq!(disk.below(&paths.frozen), frozen);
    assert_eq!(disk.below(&paths.fixed), ["w", "w/a", "w/a/b", "w/lib"]);
    assert!(!disk.root.join("w/.git/commondir").exists());
    let paths = disk.places_of("w", true, ALL);
    assert_eq!(disk.below(&paths.writable), ["w", "w/.git", "w/a/b/.git"]);
    assert!(!disk.below(&paths.frozen).contains(&"w/.git".to_owned()));
    assert!(disk.below(&paths.frozen).contains(&"w/a/b/.git/commondir".to_owned()));
}

/// If a bare clone and its worktrees are side by side, a `.git` file names the clone, which has another name. Every
/// command could change its settings, and the user's next `git status` ran a program of the command's choice.
#[test]
fn a_repository_that_a_git_file_names_is_protected() {
    let disk = SandboxDisk::with(&["w/in/.bare/HEAD", "w/in/.bare/config", "w/src/x", "w/sub/x"]);
    fs::write(disk.root.join("w/.git"), "gitdir: ./in/.bare\n").expect("written");
    fs::write(disk.root.join("w/src/.git"), "gitdir: ../sub\n").expect("written");
    let paths = disk.places_of("w", false, ALL);
    assert_eq!(disk.below(&paths.frozen), ["w/.git", "w/src/.git", "w/in/.bare"]);
    assert_eq!(disk.below(&paths.fixed), ["w", "w/in", "w/src"]);
    let paths = disk.paths("w", ALL);
    let frozen = ["hooks", "config", "commondir", "remotes", "branches"];
    let frozen = frozen.map(|name| format!("w/in/.bare/{name}"));
    assert_eq!(disk.below(&paths.frozen)[2..], frozen);
    assert_eq!(disk.below(&paths.fixed), ["w", "w/in", "w/in/.bare", "w/src"]);
}

/// Regression: with a worktree of the repository in the workspace, no command that changes Git could be started, because the
/// settings were replaced twice.
#[test]
fn a_repository_with_worktrees_in_the_workspace_is_protected_once() {
    let disk = SandboxDisk::with(&["w/.git/HEAD", "w/.git/config", "w/.git/worktrees/t/HEAD", "w/t/x"]);
    fs::write(disk.root.join("w/t/.git"), "gitdir: ../.git/worktrees/t\n").expect("written");
    let back = disk.root.join("w/t/.git").display().to_string();
    fs::write(disk.root.join("w/.git/worktrees/t/gitdir"), back).expect("written");
    let mut frozen = disk.paths("w", ALL).frozen;
    assert!(
        frozen.contains(&disk.root.join("w/.git/config")) && frozen.contains(&disk.root.join("w/t/.git"))
    );
    let all = frozen.len();
    frozen.sort();
    frozen.dedup();
    assert_eq!(frozen.len(), all);
}

/// Regression: in a session above a bare clone that has its worktrees in it, all of them were read-only.
#[test]
fn worktrees_in_a_bare_clone_stay_writable() {
    let module = "worktrees/t/modules/lib";
    let files = ["w/b.git/HEAD", "w/b.git/worktrees/t/HEAD", "w/b.git/t/lib/x"];
    let disk = SandboxDisk::with(&[&files[..], &[&*format!("w/b.git/{module}/HEAD")]].concat());
    for (file, text) in [
        ("worktrees/t/commondir", "../..\n"),
        ("t/.git", "gitdir: ../worktrees/t\n"),
        ("t/lib/.git", &*format!("gitdir: ../../{module}\n")),
    ] {
        fs::write(disk.root.join("w/b.git").join(file), text).expect("written");
    }
    let paths = disk.places_of("w", false, ALL);
    assert_eq!(disk.below(&paths.frozen), ["w/b.git/t/.git", "w/b.git/t/lib/.git"]);
    assert_eq!(disk.below(&paths.closed), ["w/b.git"]);
    assert_eq!(disk.below(&paths.fixed), ["w", "w/b.git", "w/b.git/t", "w/b.git/t/lib"]);
}

/// The settings of submodules were protected only in the repository's own directory, if their names had at most four
/// parts, and of 64 of them. With permission for a `git add`, a command could change the others: the user's next
/// `git status` ran what they named.
#[test]
fn settings_of_all_submodules_and_worktrees_are_protected() {
    let deeper = format!("w/.git/modules/{}", ["x"; 12].join("/"));
    let usual = ["w/.git/modules/a/b/c/d/lib", "w/.git/worktrees/t/modules/lib"].map(str::to_owned);
    let many = |of: &str| -> Vec<String> {
        (0..=git::MODULES_MAX).map(|number| format!("w/.git/{of}/{number}")).collect()
    };
    for directories in [usual.to_vec(), vec![deeper], many("modules/many"), many("worktrees")] {
        let mut files: Vec<String> = directories.iter().map(|path| format!("{path}/HEAD")).collect();
        files.extend(directories.iter().map(|path| format!("{path}/commondir")));
        files.push("w/.git/HEAD".to_owned());
        let disk = SandboxDisk::with(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let paths = disk.paths("w", ALL);
        let is_frozen = |path: &str, name: &str| {
            paths.frozen.iter().any(|above| disk.root.join(path).join(name).starts_with(above))
        };
        for path in &directories {
            assert!(is_frozen(path, "commondir"), "{path}");
            if usual.contains(path) {
                assert!(is_frozen(path, "hooks") && !is_frozen(path, "index"), "{path}");
            }
        }
    }
}

#[test]
fn a_directory_of_hooks_that_settings_name_is_read_only() {
    let disk = SandboxDisk::with(&["w/.git/HEAD", "w/.githooks/pre-commit", "w/tools/Hooks/x", "home/x"]);
    fs::write(disk.root.join("home/.gitconfig"), "[core]\n\thooksPath = .githooks\n").expect("written");
    assert!(disk.below(&disk.paths("w", ALL).frozen).contains(&"w/.githooks".to_owned()));
    fs::write(disk.root.join("w/.git/config"), "[core]\n\thooksPath = \"tools/Hooks\"\n").expect("written");
    let paths = disk.places_of("w", false, ALL);
    assert!(disk.below(&paths.frozen).contains(&"w/tools/Hooks".to_owned()));
    // A command moved `tools` away and created another one, and the user's next `git commit` ran its hook.
    assert_eq!(disk.below(&paths.fixed), ["w", "w/tools"]);
}

/// Files that refer Git to its configuration are created if missing, and existing ones stay unchanged.
#[test]
fn missing_commondir_and_worktree_config_are_created() {
    let disk = SandboxDisk::with(&["w/.git/HEAD", "w/.git/config", "w/.git/worktrees/t/commondir"]);
    let text = |path: &str| fs::read_to_string(disk.root.join("w/.git").join(path)).ok();
    disk.paths("w", Support { namespaces: Namespaces::None, ..ALL });
    assert_eq!(text("commondir"), None, "without mounts it would hold nothing");
    let paths = disk.paths("w", ALL);
    assert_eq!(text("commondir").as_deref(), Some("./\n"));
    assert_eq!(text("worktrees/t/commondir").as_deref(), Some(""));
    assert_eq!(text("config.worktree"), None, "Git would not read it");
    let frozen = ["hooks", "config", "commondir", "remotes", "branches", "worktrees/t/commondir"];
    let frozen = frozen.map(|name| format!("w/.git/{name}"));
    assert_eq!(disk.below(&paths.frozen), frozen);
    assert_eq!(disk.below(&paths.fixed), ["w", "w/.git", "w/.git/worktrees", "w/.git/worktrees/t"]);

    fs::write(disk.root.join("w/.git/config"), "[extensions]\n\tworktreeConfig = true\n").expect("written");
    disk.paths("w", ALL);
    assert_eq!(text("config.worktree").as_deref(), Some(""));
    assert_eq!(text("worktrees/t/config.worktree").as_deref(), Some(""));
}

/// With a `commondir` Git ignores `core.bare`: it would report a bare repository's files as deleted.
#[test]
fn a_bare_repository_is_closed_instead() {
    let disk =
        SandboxDisk::with(&["w/.git/HEAD", "w/.git/hooks/", "w/.git/objects/", "w/.git/worktrees/t/HEAD"]);
    let config = |text: &str| fs::write(disk.root.join("w/.git/config"), text).expect("written");
    config("[core]\n\tbare = true\n");
    let paths = disk.paths("w", ALL);
    assert!(!disk.root.join("w/.git/commondir").exists());
    assert_eq!(disk.below(&paths.closed), ["w/.git"]);
    let fixed = ["w", "w/.git", "w/.git/logs", "w/.git/objects", "w/.git/worktrees", "w/.git/worktrees/t"];
    assert_eq!(disk.below(&paths.fixed), fixed);
    for (text, is_closed) in [
        ("[core]\n\tbare = false\n", false),
        ("[Core] Bare ; as it is\n", true),
        ("[core]\n\tworktree = ../elsewhere\n", true),
        ("[remote \"core\"]\n\tbare = true\n", false),
        ("[core]\n\tbare = true\n[extensions]\n\tworktreeConfig = true\n", false),
    ] {
        config(text);
        assert_eq!(!disk.paths("w", ALL).closed.is_empty(), is_closed, "{text}");
    }
}

/// With software rendering, Mesa keeps machine code in its cache: what a command wrote there, the user's browser ran.
#[test]
fn a_cache_of_machine_code_is_not_writable() {
    let disk = SandboxDisk::with(&["w/x", "home/.cache/mesa_shader_cache/x", "home/.cache/ruff/x"]);
    assert_eq!(disk.below(&disk.places_of("w", false, ALL).writable), ["w", "home/.cache/ruff"]);
}

/// In a session in the home, every command could write to `.config/autostart` or `.local/bin`, create a `.zshrc` and
/// replace programs in `go/bin`, without a prompt in mode auto.
#[test]
fn a_home_as_workspace_keeps_its_settings_and_secrets() {
    let files = ["home/.bashrc", "home/.ssh/id", "home/bin/x", "home/notes/a", "home/go/bin/x", "home/b"];
    let disk = SandboxDisk::with(&[&files[..], &["home/Library/LaunchAgents/x"]].concat());
    for support in [ALL, Support { namespaces: Namespaces::None, ..ALL }] {
        let paths = disk.paths("home", support);
        assert_eq!(disk.below(&paths.writable), ["home/go", "home/notes"]);
        assert!(paths.covered.is_empty());
    }
    let frozen = disk.below(&disk.paths("home", ALL).frozen);
    assert!(frozen.contains(&"home/go/bin".to_owned()), "{frozen:?}");
    // Regression: with the home itself on PATH, nothing in it could be changed.
    let paths = ["home", "home/go/bin"].map(|path| disk.root.join(path));
    let path = std::env::join_paths(&paths).expect("no colons");
    let environment = vec![("HOME".into(), paths[0].clone().into_os_string()), ("PATH".into(), path)];
    let workspace = Workspace::new(&paths[0], Vec::new(), Arc::new(environment));
    let found = find(&SandboxRules::default(), &CommandDisk::new(&workspace), false, &ALL);
    assert!(found.frozen.contains(&paths[1]) && !found.frozen.contains(&paths[0]));
}

/// In a container, where no shell starts in the directory of a project that is `HOME`.
#[test]
fn a_project_that_is_home_is_writable_except_for_secrets() {
    let disk = SandboxDisk::with(&["home/.ssh/id", "home/.epitome/data/x", "home/notes/a", "home/b"]);
    let paths = disk.paths("home", ALL);
    assert_eq!(disk.below(&paths.covered), ["home/.epitome/data", "home/.ssh"]);
    assert_eq!(disk.below(&paths.writable), ["home"]);
    // Without mounts the siblings can be changed, but none can be created.
    let paths = disk.paths("home", Support { namespaces: Namespaces::None, ..ALL });
    let mut writable = disk.below(&paths.writable);
    writable.sort();
    assert_eq!(writable, ["home/b", "home/notes"]);
    assert!(paths.covered.is_empty() && paths.frozen.is_empty());
}

/// Regression: with a home below `/tmp`, a command could write a hook into `~/.epitome/hooks`, which then ran outside of
/// the sandbox, and the settings of the user's shells.
#[test]
fn a_home_in_a_directory_for_temporary_files_is_read_only() {
    let disk = SandboxDisk::with(&["tmp/users/ann/w/a", "tmp/users/ann/.cache/pip/x", "tmp/own/"]);
    let paths = |home: &str, settings: &str| {
        let environment = vec![("HOME".into(), disk.root.join(home).into_os_string())];
        let cwd = disk.root.join("tmp/users/ann/w");
        let rules = SandboxRules {
            temporary: vec![disk.root.join("tmp")],
            settings: Some(disk.root.join(settings)),
            ..SandboxRules::default()
        };
        let workspace = Workspace::new(cwd, Vec::new(), Arc::new(environment));
        find(&rules, &CommandDisk::new(&workspace), false, &ALL)
    };
    let found = paths("tmp/users/ann", "tmp/users/ann/.epitome");
    assert_eq!(disk.below(&found.closed), ["tmp/users/ann"]);
    let fixed = ["tmp/users", "tmp/users/ann/w", "tmp/users/ann/.cache/pip", "tmp/users/ann/w"];
    assert_eq!((disk.below(&found.fixed), found.frozen), (fixed.map(str::to_owned).into(), Vec::new()));
    // In a home that is the directory for temporary files, only directories with hooks can be kept.
    let found = paths("tmp", "tmp/own/epitome");
    assert_eq!(disk.below(&found.frozen), ["tmp/.kodelet", "tmp/.claude", "tmp/own/epitome"]);
    assert!(found.closed.is_empty() && disk.below(&found.fixed) == ["tmp/own", "tmp/users/ann/w"]);
}

#[test]
fn directory_above_a_home_is_not_writable() {
    let disk = SandboxDisk::with(&["home/a"]);
    assert_eq!(disk.below(&disk.paths("", ALL).writable), Vec::<String>::new());
}

/// A command could write a `.git` file that names any directory, and the next command would get access to it.
#[test]
fn worktree_needs_a_back_reference_from_its_repository() {
    let disk = SandboxDisk::with(&["main/.git/HEAD", "main/.git/worktrees/w/HEAD", "w/", "home/.ssh/HEAD"]);
    let own = disk.root.join("main/.git/worktrees/w");
    fs::write(disk.root.join("w/.git"), format!("gitdir: {}\n", own.display())).expect("written");
    assert_eq!(git::directory(&disk.root.join("w")), None, "nothing names it yet");
    fs::write(own.join("gitdir"), format!("{}\n", disk.root.join("w/.git").display())).expect("written");
    assert_eq!(git::directory(&disk.root.join("w")), Some(disk.root.join("main/.git")));
    fs::write(disk.root.join("w/.git"), "gitdir: ../home/.ssh\n").expect("written");
    assert_eq!(git::directory(&disk.root.join("w")), None);
}

/// Hooks and servers in a session's directory ran outside of the sandbox, if it was a directory of settings.
#[test]
fn settings_with_hooks_are_no_workspace() {
    let disk = SandboxDisk::with(&["home/.claude/commands/x.md", "home/.bashrc", "home/w/a"]);
    for (cwd, writable) in [("home/.claude", false), ("home/.claude/commands", false), ("home/w", true)] {
        let paths = disk.paths(cwd, ALL);
        assert_eq!(paths.writable.contains(&disk.root.join(cwd)), writable, "{cwd}");
    }
}

/// With dotfiles in the workspace, a command changed what the user's next shell ran.
#[test]
fn what_links_of_the_home_lead_to_stays_as_it_is() {
    use std::os::unix::fs::symlink;
    let files = [
        "home/w/shell/bashrc",
        "home/w/git/hooks/x",
        "home/w/tool",
        "home/w/other",
        "home/.config/git/",
        "home/go/bin/",
    ];
    let disk = SandboxDisk::with(&files);
    for (link, target) in [
        (".bashrc", "shell/bashrc"),
        (".config/git/hooks", "git/hooks"),
        ("go/bin/tool", "tool"),
        ("notes", "other"),
    ] {
        symlink(disk.root.join("home/w").join(target), disk.root.join("home").join(link)).expect("linked");
    }
    let frozen = disk.below(&disk.paths("home/w", ALL).frozen);
    for target in ["shell/bashrc", "git/hooks", "tool"] {
        assert!(frozen.contains(&format!("home/w/{target}")), "{target}: {frozen:?}");
    }
    assert!(!frozen.contains(&"home/w/other".to_owned()));
}

/// A background command read logins that were made after it had started.
#[test]
fn directories_of_programs_are_hidden_unless_they_are_opened() {
    let disk = SandboxDisk::with(&[
        "home/.bashrc",
        "home/.newtool/x",
        "home/.config/newtool/x",
        "home/.config/git/config",
        "home/.cargo/config.toml",
        "home/w/a",
    ]);
    let hidden = disk.paths("home/w", ALL).hidden;
    let is_hidden =
        |path: &str| hidden.iter().any(|above| disk.root.join("home").join(path).starts_with(above));
    assert!(is_hidden(".newtool/login") && is_hidden(".config/newtool/login"));
    assert!(!is_hidden(".bashrc") && !is_hidden(".config/git/config") && !is_hidden(".cargo/config.toml"));
    for directory in ["", ".config", ".cargo"] {
        let listed = disk.root.join("home").join(directory);
        assert!(
            hidden.iter().any(|path| path.starts_with(&listed)),
            "only existing entries of {directory:?} are readable"
        );
    }
}

/// A program logged in after the secrets of the home had been searched, and before what commands may read was listed: its new
/// directory, whose name is that of a program with nothing secret otherwise, was readable as a whole. So was a file that it
/// renamed later.
#[test]
fn what_appears_in_a_home_meanwhile_is_closed() {
    let disk = SandboxDisk::with(&[
        "home/.bashrc",
        "home/.cargo/config.toml",
        "home/.gradle/init.gradle",
        "home/.config/fish/config.fish",
        "home/w/a",
    ]);
    let mut paths = disk.paths("home/w", ALL);
    let later = [
        ".cargo/credentials.toml",
        ".config/git/config",
        ".config/fish/fish_variables.x1",
        ".gradle/gradle.properties",
        ".cache/huggingface/hub",
        ".npm/_logs/x",
        ".newtool/x",
    ];
    for file in later {
        let path = disk.root.join("home").join(file);
        fs::create_dir_all(path.parent().expect("it is below")).expect("made");
        fs::write(path, "").expect("written");
    }
    paths.find_readable();
    let workspace = disk.workspace("home/w");
    close_later(&mut paths, &SandboxRules::default(), &CommandDisk::new(&workspace));
    let is_readable =
        |file: &str| paths.read.iter().any(|above| disk.root.join("home").join(file).starts_with(above));
    let readable: Vec<_> = later.into_iter().filter(|file| is_readable(file)).collect();
    assert!(readable.is_empty(), "{readable:?}");
    for file in [".bashrc", ".cargo/config.toml", ".gradle/init.gradle", ".config/fish/config.fish", "w/a"] {
        assert!(is_readable(file), "{file}");
    }
}
