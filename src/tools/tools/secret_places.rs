//! Locations in which programs keep keys, tokens, passwords, browser data and the history of user input. One list for
//! the sandbox, which hides them from commands, for the file tools, which ask before accessing them in every mode
//! except full, and for searches, which skip them.
//!
//! Names of files that are secret anywhere (`.env`, `*.pem`) count too, but are hidden from commands only below the
//! data directories of programs, because a build may need them elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

/// Locations below a home directory that no rule below covers. Most belong to programs that use a network, which a
/// sandboxed command can't access.
const IN_HOME: &[&str] = &[
    // Keys and related tools.
    ".ssh",
    ".gnupg",
    ".local/share/gnupg",
    ".pki",
    ".age",
    ".config/age",
    ".config/sops",
    ".minisign",
    ".putty",
    ".step",
    ".yubico",
    ".config/Yubico",
    ".password-store",
    ".local/share/password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/lpass",
    ".config/op",
    ".op",
    ".config/keepassxc",
    ".cache/keepassxc",
    // Infrastructure.
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".oci",
    ".aliyun",
    ".tccli",
    ".bluemix",
    ".fly",
    ".vercel",
    ".netlify",
    ".config/netlify",
    ".local/share/com.vercel.cli",
    ".config/com.vercel.cli",
    ".wrangler",
    ".config/.wrangler",
    ".cloudflared",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/scw",
    ".config/linode-cli",
    ".config/openstack",
    ".config/exoscale",
    ".config/railway",
    ".railway",
    ".config/configstore/firebase-tools.json",
    ".config/firebase",
    ".config/argocd",
    ".config/helm/registry",
    ".config/containers",
    ".config/rclone",
    ".config/stripe",
    ".config/ngrok",
    ".ngrok2",
    ".config/doppler",
    ".doppler",
    ".infisical",
    ".supabase",
    ".config/planetscale",
    ".config/turso",
    ".tsh",
    ".minikube",
    ".rancher",
    ".terraform.d",
    ".terraformrc",
    ".chef",
    ".vault-token",
    ".databrickscfg",
    ".databricks",
    ".snowsql",
    ".snowflake",
    ".config/snowflake",
    ".dbt/profiles.yml",
    ".ovh.conf",
    ".modal.toml",
    ".runpod",
    ".vast_api_key",
    ".config/vastai",
    ".s3cfg",
    ".boto",
    ".my.cnf",
    ".mylogin.cnf",
    ".mongodb",
    // Source code and packages.
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/github-copilot",
    ".config/pip",
    ".config/pypoetry",
    // It may have tokens (`access-tokens`).
    ".config/nix/nix.conf",
    ".clasprc.json",
    ".m2/settings.xml",
    ".m2/settings-security.xml",
    ".gradle/gradle.properties",
    ".bundle/config",
    ".nuget/NuGet",
    ".config/NuGet",
    ".hex/hex.config",
    ".sentryclirc",
    ".wakatime.cfg",
    ".android/adbkey",
    ".expo/state.json",
    ".kaggle",
    ".config/kaggle",
    ".config/wandb",
    // Other agents.
    ".claude.json",
    ".claude/.credentials.json",
    ".codex/auth.json",
    // Epitome's logins, also if `EPITOME_HOME` is the usual directory.
    ".local/share/epitome/logins",
    ".local/share/epitome/mcp-logins",
    ".epitome/data/logins",
    ".epitome/data/mcp-logins",
    ".gemini/oauth_creds.json",
    ".config/io.datasette.llm/keys.json",
    // Wallets.
    ".bitcoin",
    ".litecoin",
    ".dogecoin",
    ".monero",
    ".bitmonero",
    ".ethereum",
    ".electrum",
    ".config/solana",
    ".config/Exodus",
    ".near-credentials",
    ".foundry/keystores",
    ".sui",
    ".aptos",
    // Browsers, mail and chat.
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".mozilla",
    ".librewolf",
    ".thunderbird",
    ".config/Bitwarden CLI",
    ".local/share/TelegramDesktop",
    ".local/share/signal-cli",
    ".purple",
    ".weechat",
    ".config/weechat",
    ".irssi",
    ".msmtprc",
    ".config/msmtp",
    ".fetchmailrc",
    ".mbsyncrc",
    ".offlineimaprc",
    ".config/filezilla",
    ".local/share/remmina",
    ".config/remmina",
    "snap/firefox",
    "snap/chromium",
    ".var/app",
    ".Xauthority",
    // User input, if the file's name doesn't identify it as a history.
    ".lesshst",
    ".viminfo",
    ".local/share/atuin",
    // macOS.
    "Library/Application Support/Firefox",
    "Library/Application Support/Google/Chrome",
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
    // Of each user: logins of Podman and Skopeo (`containers/auth.json`), and the right to use the screen.
    "/run/user",
];

/// Directories below a home directory in which each entry belongs to one program, in addition to the hidden
/// directories of the home directory.
const OF_PROGRAMS: [&str; 7] = [
    ".config",
    ".local/share",
    ".local/state",
    ".cache",
    "Library/Application Support",
    "AppData/Local",
    "AppData/Roaming",
];

/// Entries that exist only in the profile of a Chromium browser or Electron program: its cookies and logins.
const OF_CHROMIUM: [&str; 4] = ["Cookies", "Local Storage", "Local State", "Login Data"];

/// Words in the names of secret files below the directories of programs: `auth.json`, `access_tokens.db`,
/// `.credentials`.
const SECRET_WORDS: &[&str] = &[
    "apikey",
    "apikeys",
    "auth",
    "authinfo",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "creds",
    "globalstorage",
    "keyring",
    "keystore",
    "oauth",
    "passwd",
    "password",
    "passwords",
    "secret",
    "secrets",
    "token",
    "tokens",
];

/// Maximum number of programs per directory, and of entries per program. A directory with more isn't a home.
const ENTRIES_MAX: usize = 4_096;

/// The existing secret locations of one user; canonical paths.
#[derive(Clone, Debug, Default)]
pub struct SecretPlaces(Vec<PathBuf>);

impl SecretPlaces {
    /// Searches the disk for them: some hundred system calls, a millisecond or two.
    pub fn find(home: Option<&Path>) -> SecretPlaces {
        let mut found: Vec<PathBuf> = ELSEWHERE.iter().map(PathBuf::from).collect();
        if let Some(home) = home {
            found.extend(IN_HOME.iter().map(|place| home.join(place)));
            find_in_home(home, &mut found);
        }
        // Check for existence first, with one call: most don't exist, and resolving a path takes a call per
        // component.
        let is_there = |place: &PathBuf| place.symlink_metadata().is_ok();
        let real = found.into_iter().filter(is_there).filter_map(|place| place.canonicalize().ok());
        let mut places: Vec<PathBuf> = real.collect();
        // A link to the home directory or a parent of it would hide everything.
        let home = home.and_then(|home| home.canonicalize().ok());
        places.retain(|place| home.as_ref().is_none_or(|home| !home.starts_with(place)));
        places.sort();
        // In sorted order, the contents of a directory follow it.
        places.dedup_by(|later, kept| later.starts_with(kept));
        SecretPlaces(places)
    }

    /// The locations; all canonical, none below another.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Whether this resolved path is one of the locations or below one.
    pub fn contain(&self, path: &Path) -> bool {
        self.0.iter().any(|place| path.starts_with(place))
    }

    /// Returns those below this resolved directory. For a directory inside a secret location that is none: the search
    /// there was requested explicitly.
    pub fn below(mut self, directory: &Path) -> SecretPlaces {
        self.0.retain(|place| place != directory && place.starts_with(directory));
        self
    }

    /// Whether one of the locations is equal to this resolved directory, below it, or above it.
    pub fn touch(&self, directory: &Path) -> bool {
        self.contain(directory) || self.0.iter().any(|place| place.starts_with(directory))
    }
}

fn find_in_home(home: &Path, found: &mut Vec<PathBuf>) {
    for Listed { name, path, may_be_directory } in entries(home) {
        if !name.starts_with('.') {
            continue;
        }
        if is_secret_entry(&name, &path) {
            found.push(path);
        } else if may_be_directory {
            find_of_program(&entries(&path), found);
        }
    }
    for directory in OF_PROGRAMS {
        for Listed { name, path, may_be_directory } in entries(&home.join(directory)) {
            if is_secret_entry(&name, &path) {
                found.push(path);
                continue;
            }
            let own = if may_be_directory { entries(&path) } else { Vec::new() };
            if own.iter().any(|own| OF_CHROMIUM.contains(&&*own.name)) {
                found.push(path);
                continue;
            }
            find_of_program(&own, found);
            if own.iter().any(|own| own.name == "User") {
                find_of_program(&entries(&path.join("User")), found);
            }
        }
    }
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
    is_secret_name(path)
        || stem.ends_with("history")
        || lower.ends_with("history")
        || stem.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| SECRET_WORDS.contains(&word))
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
            ".nuget/NuGet/NuGet.Config",
            ".kaggle/kaggle.json",
            ".config/wandb/settings",
            ".cache/huggingface/token",
            ".cache/huggingface/stored_tokens",
            ".cargo/credentials.toml",
            ".local/share/opencode/auth.json",
            ".config/some-new-tool/access_tokens.db",
            ".some-new-tool/api-token",
            ".config/some-new-tool/server.key",
            ".netrc",
        ];
        let ordinary = [
            ".bashrc",
            ".config/nvim/init.lua",
            ".config/Code/User/settings.json",
            ".config/git/config",
            ".cargo/config.toml",
            ".cargo/registry/src/tokens-1.0/src/tokens.rs",
            ".cache/pip/http/x",
            ".npm/_cacache/index",
            "work/src/auth/token.rs",
            "notes.txt",
        ];
        let (_directory, home) = home(&[&secret[..], &ordinary[..]].concat());
        let places = SecretPlaces::find(Some(&home));
        let missed: Vec<_> = secret.iter().filter(|file| !places.contain(&home.join(file))).collect();
        assert!(missed.is_empty(), "{missed:?}");
        let wrong: Vec<_> = ordinary.iter().filter(|file| places.contain(&home.join(file))).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        for directory in ["", ".config", ".cache", ".local/share"] {
            assert!(places.touch(&home.join(directory)), "{directory}");
        }
        assert!(!places.touch(&home.join("work")) && !places.touch(&home.join(".config/nvim")));
        assert!(places.touch(home.parent().expect("it has one")));
    }

    #[test]
    fn a_place_behind_a_link_is_secret_by_both_names() {
        let (_directory, home) = home(&["dotfiles/keys/id"]);
        std::os::unix::fs::symlink(home.join("dotfiles/keys"), home.join(".ssh")).expect("linked");
        std::os::unix::fs::symlink(&home, home.join(".gnupg")).expect("linked");
        let places = SecretPlaces::find(Some(&home));
        assert!(places.contain(&home.join("dotfiles/keys/id")));
        assert!(!places.contain(&home.join("work")), "a link to the home itself hides nothing");
    }

    /// A command could read the logins of Podman, which are not in the home directory.
    #[test]
    fn files_of_a_login_session_are_secret() {
        let logins = Path::new("/run/user/1000/containers/auth.json");
        assert_eq!(SecretPlaces::find(None).contain(logins), Path::new("/run/user").is_dir());
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
