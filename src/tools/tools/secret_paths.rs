//! Locations in which programs keep keys, tokens, passwords, browser data and the history of user input. One list for
//! the sandbox, which hides them from commands, for the file tools, which ask before accessing them in every mode
//! except full, and for searches, which skip them. In a home, it is all that is hidden, except for what programs need.
//!
//! Names of files that are secret anywhere (`.env`, `*.pem`) count too, but are hidden from commands only below the
//! data directories of programs, because a build may need them elsewhere.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use super::real_path;
use epitome_platform::os::{self, FileTypeExt as _, PermissionsExt as _};
use epitome_platform::root::resolve;

/// Entries of a home directory, and of its directories for programs, that programs need and that hold no logins except in
/// files with a telling name. All other hidden entries are secret: most programs keep logins, histories or messages there, and
/// new programs do so, too. A line is a directory, and what is opened in it.
const OPENED: &[(&str, &str)] = &[
    (
        "",
        ".asdf .aspnet .bash_aliases .bash_completion .bash_login .bash_logout .bash_profile .bashrc .bazelrc .bun .cabal .cargo \
         .ccache .choosenim .clang-format .clang-tidy .clangd .cmake .composer .conan .conan2 .conda .config .cache \
         .cpan .cpanm .crystal .cshrc .deno .dir_colors .dircolors .dotnet .editorconfig .elan \
         .espressif .fnm .fonts .fonts.conf .fvm .fzf .fzf.bash .fzf.zsh .gdbinit .gem .gemrc .ghc .ghci .ghcup .gitattributes \
         .gitconfig .gitignore .gitignore_global .gitmessage .goenv .gradle .gvm .hex .hgrc .hushlogin .icons .inputrc .ipython \
         .irbrc .ivy2 .jabba .java .jbang .jdks .jenv .julia .juliaup .konan .kotlin .lein .linuxbrew .local .login .luarocks \
         .m2 .mambarc .matplotlib .micromamba .mix .n .nanorc .nimble .nix-channels .nix-defexpr .nix-profile .node-gyp .nodenv \
         .npm .npm-global .npm-packages .nuget .nvm .oh-my-zsh .opam .perl5 .perlbrew .phpenv .pixi .platformio .pnpm \
         .pnpm-store .profile .proto .pub-cache .pyenv .pylintrc .pythonrc .rbenv .roswell .rustup .rvm .rye .sbt .screenrc \
         .sdkman .selected_editor .stack .swiftly .swiftpm .terminfo .texlive .tfenv .themes .tmux.conf .tool-versions .tox \
         .turbo .uv .vcpkg .venv .vim .vimrc .virtualenvs .volta .wasmer .wasmtime .yarn .yarnrc .zig \
         .zinit .zlogin .zplug .zprofile .zsh .zshenv .zshrc .zvm",
    ),
    (
        ".config",
        "bat black cabal cargo ccache clangd cmake composer direnv fd fish flake8 fontconfig gdb ghc git go htop \
         locale.conf matplotlib mise mypy nextest.toml nixpkgs nvim pnpm pycodestyle pylint pylintrc ripgrep ruff rustfmt \
         stack starship.toml tmux user-dirs.dirs user-dirs.locale uv yapf yarn zsh",
    ),
    (
        ".local/share",
        "applications asdf bash-completion bun cabal cargo coursier deno fnm fonts gem ghcup go hatch icons julia luarocks mamba \
         man micromamba mime mise npm nvim nvm opam pdm pipx pnpm pypoetry rtx rustup swiftly uv virtualenv virtualenvs yarn zinit \
         zsh",
    ),
    (".local/state", "fnm_multishells mise nix nvim"),
    (
        ".cache",
        "Cypress JNA R babel bazel bazelisk black bun ccache ccls clangd composer conda coursier cypress datasets deno electron \
         electron-builder epitome esbuild fastembed fnm_multishells fontconfig go go-build golangci-lint gopls gradle helm \
         huggingface jedi jest julia kotlin mamba matplotlib meson mise ms-playwright mypy nix nltk_data node node-gyp numba \
         nuget opencode pdm pip pip-tools pipenv pipx pnpm pre-commit prettier prisma puppeteer pylint pypoetry rattler ruff sbt \
         sccache selenium spack staticcheck swc tealdeer tiktoken torch triton trivy turbo typescript uv virtualenv vite \
         whisper yarn zig",
    ),
    ("Library/Application Support", ""),
];

/// Beginnings of paths in opened directories of a home that are secret without a telling name. Programs write such a file
/// under a longer name first, and then rename it.
const WITHOUT_TELLING_NAME: [&str; 6] = [
    ".bundle/config",
    ".gradle/gradle.properties",
    ".hex/hex.config",
    ".m2/settings",
    ".nuget/NuGet",
    "fish/fish_variables",
];

/// Secret locations below a home directory that are in no hidden directory.
const IN_HOME: &[&str] = &[
    "snap/chromium",
    "snap/firefox",
    // macOS.
    "Library/Cookies",
    "Library/Keychains",
    "Library/Mail",
    "Library/Messages",
    "Library/Safari",
    // Windows.
    "AppData/Local/Google/Chrome",
    "AppData/Local/Microsoft/Credentials",
    "AppData/Local/Microsoft/Edge",
    "AppData/Local/Microsoft/Vault",
    "AppData/Roaming/GitHub CLI",
    "AppData/Roaming/Microsoft/Credentials",
    "AppData/Roaming/Microsoft/Protect",
    "AppData/Roaming/Mozilla",
    "AppData/Roaming/gcloud",
];

/// Hidden directories that are secret also in a home that is the directory of a project, where others belong to it.
const IN_EVERY_HOME: &str =
    ".ssh .gnupg .aws .azure .kube .docker .password-store .mozilla .terraform.d .oci";

/// Secret locations outside of home directories; most are readable only for root anyway.
const ELSEWHERE: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/ssh",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/krb5.keytab",
    "/etc/NetworkManager/system-connections",
    "/etc/kubernetes",
    "/etc/rancher",
    "/run/containers",
    "/run/credentials",
    "/run/secrets",
    // Files of each user: logins of Podman and Skopeo (`containers/auth.json`), and the right to use the screen.
    "/run/user",
];

/// Words in the names of secret files below the directories of programs: `auth.json`, `access_tokens.db`,
/// `.credentials`.
const SECRET_WORDS: &str = "apikey apikeys auth authinfo cookie cookies credential credentials creds globalstorage keyring keystore \
    oauth passwd password passwords secret secrets token tokens";

/// Maximum number of programs per directory, and of entries per program. A directory with more isn't a home.
const ENTRIES_MAX: usize = 4_096;

/// The existing secret locations of one user; canonical paths.
#[derive(Clone, Debug, Default)]
pub struct SecretPaths(Vec<PathBuf>);

impl SecretPaths {
    /// Searches the disk for them: some hundred system calls, a millisecond or two. `roots`: the directories of the session,
    /// which are not secret as such. `environment`: variables name further locations.
    pub fn find(home: Option<&Path>, roots: &[&Path], environment: &[(OsString, OsString)]) -> SecretPaths {
        let mut found: Vec<PathBuf> = ELSEWHERE.iter().map(PathBuf::from).collect();
        let account = account_home();
        for home in home.into_iter().chain(account.as_deref().filter(|account| Some(*account) != home)) {
            found.extend(IN_HOME.iter().map(|location| home.join(location)));
            find_in_home(home, roots, &mut found);
        }
        let own: Vec<&Path> =
            home.into_iter().chain(account.as_deref()).chain(roots.iter().copied()).collect();
        found.extend(other_homes(&own, environment));
        found.extend(tickets());
        let (named, missing): (Vec<_>, Vec<_>) =
            named_by(environment, home, roots).into_iter().partition(|location| location.exists());
        found.extend(named);
        let real = found.into_iter().filter_map(|location| resolve(&location).ok());
        let mut locations: Vec<PathBuf> =
            real.chain(missing.iter().map(|location| real_path(location))).collect();
        // A link to the home directory or a parent of it would hide everything.
        let home = home.and_then(|home| resolve(home).ok());
        let is_above = |location: &PathBuf| {
            home.iter()
                .map(PathBuf::as_path)
                .chain(roots.iter().copied())
                .any(|path| path.starts_with(location))
        };
        locations.retain(|location| !is_above(location));
        locations.sort();
        // In sorted order, the contents of a directory follow it.
        locations.dedup_by(|later, kept| later.starts_with(kept));
        SecretPaths(locations)
    }

    /// The locations; all canonical, none below another.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Whether this resolved path is one of the locations or below one.
    pub fn contain(&self, path: &Path) -> bool {
        self.0.iter().any(|location| path.starts_with(location))
    }

    /// Returns those below this resolved directory. For a directory inside a secret location that is none: the search
    /// there was requested explicitly.
    pub fn below(mut self, directory: &Path) -> SecretPaths {
        self.0.retain(|location| location != directory && location.starts_with(directory));
        self
    }

    /// Whether one of the locations is equal to this resolved directory, below it, or above it.
    pub fn touch(&self, directory: &Path) -> bool {
        self.contain(directory) || self.0.iter().any(|location| location.starts_with(directory))
    }
}

/// Finds the hidden entries that are not opened, and files with telling names in those that are.
fn find_in_home(home: &Path, roots: &[&Path], found: &mut Vec<PathBuf>) {
    // In some containers, the home is the directory of a project.
    let is_project = roots.contains(&home);
    if is_project {
        found.extend(IN_EVERY_HOME.split(' ').map(|name| home.join(name)));
    }
    for (directory, opened) in OPENED {
        let is_home = directory.is_empty();
        for Listed { name, path, may_be_directory } in entries(&home.join(directory)) {
            if is_home && !name.starts_with('.') {
                continue;
            }
            let is_opened = (is_home && is_project) || lists(opened, &name);
            match roots.iter().any(|root| root.starts_with(&path)) {
                true => hide_around(&path, roots, found),
                false if !is_opened || is_secret_entry(&name, &path) => found.push(path),
                false if may_be_directory => find_of_program(&entries(&path), found),
                false => {}
            }
        }
    }
}

/// Whether an entry of a home, of its directories for programs, or of a program's directory is secret by its place and name.
pub(crate) fn is_secret_place(path: &Path, home: &Path) -> bool {
    let Some(parent) = path.strip_prefix(home).ok().and_then(Path::parent) else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_telling = || is_secret_entry(&name, path);
    let is_in_hidden = || parent.as_os_str().as_encoded_bytes().starts_with(b".");
    OPENED.iter().any(|(directory, opened)| {
        let directory = Path::new(directory);
        match parent == directory {
            true => {
                let is_hidden = parent != Path::new("") || name.starts_with('.');
                is_hidden && (!lists(opened, &name) || is_telling())
            }
            false => parent.parent() == Some(directory) && is_in_hidden() && is_telling(),
        }
    })
}

/// Whether a name is one of these words.
fn lists(words: &str, name: &str) -> bool {
    words.split(' ').any(|word| word == name)
}

/// Hides what is beside directories of the session in this directory.
fn hide_around(path: &Path, roots: &[&Path], found: &mut Vec<PathBuf>) {
    let inside = entries(path);
    if roots.contains(&path) {
        return find_of_program(&inside, found);
    }
    for entry in inside {
        match roots.iter().any(|root| root.starts_with(&entry.path)) {
            true => hide_around(&entry.path, roots, found),
            false => found.push(entry.path),
        }
    }
}

/// The home of this process's user, whatever `HOME` says.
pub(crate) fn account_home() -> Option<PathBuf> {
    let (accounts, user) = (fs::read_to_string("/etc/passwd").ok()?, os::user_id().to_string());
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let account = accounts.lines().map(fields).find(|fields| fields.get(2) == Some(&user))?;
    account.get(5).map(PathBuf::from).filter(|home| home.parent().is_some())
}

/// The homes of other users of the machine, which root could read, and others if they are open. Some have programs.
fn other_homes(own: &[&Path], environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let programs = search_path(environment);
    let is_own = |other: &PathBuf| {
        own.iter().copied().chain(programs.iter().map(PathBuf::as_path)).any(|own| own.starts_with(other))
    };
    let all = ["/home", "/Users"].into_iter().flat_map(|parent| entries(Path::new(parent)));
    let all = all.filter(|entry| entry.may_be_directory).map(|entry| entry.path);
    all.chain([PathBuf::from("/root")]).filter(|other| !is_own(other)).collect()
}

fn search_path(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
    std::env::split_paths(path.unwrap_or_default()).collect()
}

/// Tickets of Kerberos, which are in a directory for temporary files. It may have thousands of others, so little is done for each.
fn tickets() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/tmp")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"krb5cc"))
        .map(|entry| entry.path())
}

/// Variables whose paths programs need, and the ends of the names of such variables.
const OPEN_VARIABLES: &str = "_ ANDROID_HOME BASH_ENV CARGO_TARGET_DIR DOTNET_CLI_HOME ENV PIPX_HOME PNPM_HOME POETRY_HOME RUSTUP_HOME \
                              WORKON_HOME GIT_CONFIG_GLOBAL GRADLE_USER_HOME HOME INIT_CWD INPUTRC NVM_DIR OLDPWD \
                              PWD SHELL TEMP TMP TMPDIR VIRTUAL_ENV XDG_CACHE_HOME ZDOTDIR";
const OPEN_ENDS: [&str; 8] =
    ["PATH", "PREFIX", "_ROOT", "CACHE", "CACHE_DIR", "CERT_FILE", "CERT_DIR", "CA_BUNDLE"];

/// Directories of the system, which have no logins of users.
const OF_SYSTEM: [&str; 10] =
    ["/usr", "/bin", "/lib", "/opt", "/etc", "/nix", "/snap", "/dev", "/proc", "/sys"];

/// Files and directories that variables name: settings and logins of programs in other than the usual places. A directory with
/// programs is that of a toolchain, whose logins have telling names.
fn named_by(environment: &[(OsString, OsString)], home: Option<&Path>, roots: &[&Path]) -> Vec<PathBuf> {
    // A telling name counts more than the end that it shares with others: `VAULT_TOKEN_PATH`.
    let is_telling = |name: &str| {
        let mut words = SECRET_WORDS.split_whitespace().chain(["key", "keys", "session"]);
        words.any(|word| name.to_ascii_lowercase().split('_').any(|part| part == word))
    };
    let is_open = |name: &str| {
        lists(OPEN_VARIABLES, name)
            || (OPEN_ENDS.iter().any(|end| name.ends_with(end)) && !is_telling(name))
            || ["EPITOME_", "npm_"].iter().any(|begin| name.starts_with(begin))
    };
    let programs = search_path(environment);
    let mut found = Vec::new();
    for (name, value) in environment {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if is_open(&name) {
            continue;
        }
        let paths = value.split([':', ';', ',']).map(|path| match (path.strip_prefix("~/"), home) {
            (Some(below), Some(home)) => home.join(below),
            _ => PathBuf::from(path),
        });
        for path in paths.filter(|path| path.is_absolute()) {
            // A login may be made there later.
            let file = path.metadata().ok();
            let is_file = file.as_ref().map_or(name.ends_with("FILE"), Metadata::is_file);
            let is_of_settings = ["CONFIG", "HOME", "PASSWORD"].iter().any(|word| name.contains(word));
            let is_in_home = home.is_some_and(|home| path.starts_with(home) && path != home);
            if path.parent().is_none()
                || file.is_some_and(|file| file.file_type().is_socket())
                || OF_SYSTEM.iter().any(|system| path.starts_with(system))
                || ["/tmp", "/var/tmp"].iter().any(|shared| path == Path::new(shared))
                || roots.iter().any(|root| path.starts_with(root))
                || !(is_in_home || is_file || is_of_settings || is_telling(&name))
            {
                continue;
            }
            let opened = match &*name {
                "XDG_CONFIG_HOME" => Some(OPENED[1].1),
                "XDG_DATA_HOME" => Some(OPENED[2].1),
                _ => None,
            };
            let inside = entries(&path);
            let is_of_toolchain =
                || path.join("bin").is_dir() || programs.iter().any(|program| program.starts_with(&path));
            if let Some(opened) = opened {
                let closed = inside.into_iter().filter(|entry| !lists(opened, &entry.name));
                found.extend(closed.map(|entry| entry.path));
            } else if !is_telling(&name) && is_of_toolchain() {
                find_of_program(&inside, &mut found);
                // A toolchain's files can be read by others, who may start its programs; private files are no part of one.
                let private =
                    |path: &Path| path.metadata().is_ok_and(|entry| entry.permissions().mode() & 0o077 == 0);
                if !private(&path.join("bin")) {
                    found.extend(inside.into_iter().map(|entry| entry.path).filter(|path| private(path)));
                }
            } else {
                found.push(path);
            }
        }
    }
    found
}

fn find_of_program(entries: &[Listed], found: &mut Vec<PathBuf>) {
    let secret = entries.iter().filter(|entry| is_secret_entry(&entry.name, &entry.path));
    found.extend(secret.map(|entry| entry.path.clone()));
}

struct Listed {
    name: String,
    path: PathBuf,
    /// Whether it is a directory or a link, which may lead to one.
    may_be_directory: bool,
}

fn entries(directory: &Path) -> Vec<Listed> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let listed = entries.map(|entry| Listed {
        name: entry.file_name().to_string_lossy().into_owned(),
        path: entry.path(),
        may_be_directory: entry.file_type().is_ok_and(|kind| !kind.is_file()),
    });
    listed.collect()
}

/// Whether an entry of a home directory or of a program's directory is secret by its name.
fn is_secret_entry(name: &str, path: &Path) -> bool {
    let lower = name.to_ascii_lowercase();
    let (stem, _) = lower.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).unwrap_or((&lower, ""));
    let has_no_telling_name = || {
        let above = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let written = format!("{above}/{name}");
        WITHOUT_TELLING_NAME.iter().any(|begin| written.starts_with(begin))
    };
    is_secret_name(path)
        || stem.ends_with("history")
        || lower.ends_with("history")
        || stem.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| lists(SECRET_WORDS, word))
        || has_no_telling_name()
}

/// Whether a file's name suggests that it contains keys or passwords, wherever it is. Templates of such files don't
/// count.
pub fn is_secret_name(path: &Path) -> bool {
    let Some(name) = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()) else {
        return false;
    };
    // Android's debug key has a known password, and builds need it.
    let template = name == "debug.keystore"
        || [".example", ".sample", ".template", ".dist", ".pub"].iter().any(|end| name.ends_with(end));
    let exact = [
        ".netrc",
        "_netrc",
        ".pgpass",
        ".npmrc",
        ".pypirc",
        ".git-credentials",
        ".htpasswd",
        ".dockercfg",
        "credentials",
        "credentials.json",
        "credentials.toml",
        "secrets.json",
        "secrets.yaml",
        "secrets.yml",
        "secrets.toml",
    ];
    let environment = name == ".env" || name.starts_with(".env.");
    let key = [".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk"]
        .iter()
        .any(|end| name.ends_with(end));
    // Names of SSH keys; names such as `id_map.rs` are source files.
    let ssh = name.starts_with("id_") && !name.contains('.');
    !template && (exact.contains(&name.as_str()) || environment || key || ssh)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a home directory with these files.
    fn home(files: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let home = directory.path().canonicalize().expect("it is there").join("me");
        for file in files {
            let path = home.join(file);
            fs::create_dir_all(path.parent().expect("it is below")).expect("made");
            fs::write(path, "").expect("written");
        }
        (directory, home)
    }

    /// The file tools knew 5 of the 15 locations that the sandbox hid, and neither knew the rest: one list contained
    /// file names and the other paths, and neither covered new programs.
    #[test]
    fn places_of_secrets_are_found() {
        let secret = [
            ".ssh/config",
            ".gnupg/pubring.kbx",
            ".aws/config",
            ".config/gh/hosts.yml",
            ".docker/config.json",
            ".kube/config",
            ".bash_history",
            ".sqlite_history",
            ".local/share/fish/fish_history",
            ".config/nushell/history.txt",
            ".local/share/atuin/history.db",
            ".codex/auth.json",
            ".local/share/epitome/logins/anthropic.json",
            ".claude/.credentials.json",
            ".claude.json",
            ".config/rclone/rclone.conf",
            ".config/op/config",
            ".config/Bitwarden CLI/data.json",
            ".config/age/keys.txt",
            ".config/Signal/Local State",
            ".config/Signal/config.json",
            ".config/Slack/Cookies",
            ".config/Slack/storage/x",
            ".config/Code/User/globalStorage/state.vscdb",
            ".config/Cursor/User/globalStorage/state.vscdb",
            ".config/solana/id.json",
            ".bitcoin/wallet.dat",
            ".electrum/wallets/default_wallet",
            ".local/share/com.vercel.cli/auth.json",
            ".config/netlify/config.json",
            ".fly/config.yml",
            ".config/.wrangler/config/default.toml",
            ".config/configstore/firebase-tools.json",
            ".config/hcloud/cli.toml",
            ".databrickscfg",
            ".modal.toml",
            ".config/nix/nix.conf",
            ".pulumi/credentials.json",
            ".config/composer/auth.json",
            ".composer/auth.json",
            ".kaggle/kaggle.json",
            ".config/wandb/settings",
            ".cache/huggingface/token",
            ".cache/huggingface/stored_tokens",
            ".cargo/credentials.toml",
            ".config/fish/fish_variables",
            ".config/fish/fish_variables.Qx81Zc",
            ".gradle/gradle.properties~",
            ".m2/settings.xml",
            ".nuget/NuGet/NuGet.Config",
            ".local/share/opencode/auth.json",
            ".config/some-new-tool/access_tokens.db",
            ".some-new-tool/api-token",
            ".config/some-new-tool/server.key",
            ".netrc",
            ".config/some-new-tool/settings",
            ".some-new-tool/state",
        ];
        let ordinary = [
            ".bashrc",
            ".config/nvim/init.lua",
            ".config/git/config",
            ".cargo/config.toml",
            ".cargo/registry/src/tokens-1.0/src/tokens.rs",
            ".cache/pip/http/x",
            ".npm/_cacache/index",
            "work/src/auth/token.rs",
            "notes.txt",
        ];
        let (_directory, home) = home(&[&secret[..], &ordinary[..]].concat());
        let locations = SecretPaths::find(Some(&home), &[], &[]);
        let missed: Vec<_> = secret.iter().filter(|file| !locations.contain(&home.join(file))).collect();
        assert!(missed.is_empty(), "{missed:?}");
        let wrong: Vec<_> = ordinary.iter().filter(|file| locations.contain(&home.join(file))).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        for directory in ["", ".config", ".cache", ".local/share"] {
            assert!(locations.touch(&home.join(directory)), "{directory}");
        }
        assert!(!locations.touch(&home.join("work")) && !locations.touch(&home.join(".config/nvim")));
        assert!(locations.touch(home.parent().expect("it has one")));
    }

    #[test]
    fn a_place_behind_a_link_is_secret_by_both_names() {
        let (_directory, home) = home(&["dotfiles/keys/id"]);
        std::os::unix::fs::symlink(home.join("dotfiles/keys"), home.join(".ssh")).expect("linked");
        std::os::unix::fs::symlink(&home, home.join(".gnupg")).expect("linked");
        let locations = SecretPaths::find(Some(&home), &[], &[]);
        assert!(locations.contain(&home.join("dotfiles/keys/id")));
        assert!(!locations.contain(&home.join("work")), "a link to the home itself hides nothing");
    }

    /// Variables that name a place with the `~` of a shell, by a telling name, or before the login is made were overlooked.
    #[test]
    fn places_that_variables_name_are_secret() {
        let (_directory, home) = home(&["creds/kube", "tokens/a", "keys/bin/x", "tool/bin/x", "data/x"]);
        let variable = |name: &str, value: String| (name.into(), value.into());
        let at = |name: &str| home.join(name);
        let environment = [
            variable("KUBECONFIG", "~/creds/kube".to_owned()),
            variable("VAULT_TOKEN_PATH", at("tokens/a").display().to_string()),
            variable("DEPLOY_KEYS_ROOT", at("keys").display().to_string()),
            variable("TOOL_HOME", at("tool").display().to_string()),
            variable("AWS_SHARED_CREDENTIALS_FILE", at("creds/later").display().to_string()),
            variable("DATA_PATH", at("data/x").display().to_string()),
            variable("TOKENS_DIR", "/tmp".to_owned()),
        ];
        // A program kept its logins beside its own programs, in a file without a telling name.
        fs::write(at("tool/state.db"), "").expect("written");
        fs::set_permissions(at("tool/state.db"), fs::Permissions::from_mode(0o600)).expect("set");
        let locations = SecretPaths::find(Some(&home), &[], &environment);
        for (path, expected) in [
            ("creds/kube", true),
            ("tokens/a", true),
            ("keys/bin/x", true),
            ("tool/bin/x", false),
            ("tool/state.db", true),
            ("creds/later", true),
            ("data/x", false),
        ] {
            assert_eq!(locations.contain(&at(path)), expected, "{path}");
        }
        assert!(!locations.contain(Path::new("/tmp/x")));
    }

    /// A command could read the logins of Podman, which are not in the home directory.
    #[test]
    fn files_of_a_login_session_are_secret() {
        let logins = Path::new("/run/user/1000/containers/auth.json");
        assert_eq!(SecretPaths::find(None, &[], &[]).contain(logins), Path::new("/run/user").is_dir());
    }

    #[test]
    fn secrets_are_recognised_by_name() {
        for secret in [".env", ".env.local", "server.pem", "id_rsa", ".netrc", "credentials", "TLS.KEY"] {
            assert!(is_secret_name(Path::new(secret)), "{secret}");
        }
        for ordinary in [".env.example", "id_rsa.pub", "id_map.rs", "environment.rs", "keys.rs", "pem.rs"] {
            assert!(!is_secret_name(Path::new(ordinary)), "{ordinary}");
        }
    }
}
