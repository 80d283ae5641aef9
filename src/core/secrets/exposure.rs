//! Decides which environment variables are passed to the programs that a session starts. Pure.
//!
//! The default withholds every variable that looks like a secret by its name or value, so that a forgotten setting
//! exposes nothing.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::{is_path, is_secret_name, mask};

/// Minimum length of a key's value in bytes; a shorter value may equal that of another variable by chance.
const KEY_BYTES_MIN: usize = 8;

/// The variables that the model's commands get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandVariables {
    All,
    /// All except secrets.
    NoSecrets {
        /// Names of variables that they get even if they are secrets.
        except: Vec<String>,
    },
}

impl Default for CommandVariables {
    fn default() -> CommandVariables {
        CommandVariables::NoSecrets { except: Vec::new() }
    }
}

/// The variables that each kind of program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Names of the variables with the keys of model providers.
    pub provider_keys: Vec<String>,
    pub commands: CommandVariables,
    /// Names of variables that the user's hooks get even if they are keys of providers.
    pub hooks: Vec<String>,
    /// Directories that commands may change besides those of the session. Programs in them are not found by what runs
    /// outside of the sandbox; `None` if commands are not sandboxed, so that all could be changed.
    pub changeable: Option<Vec<PathBuf>>,
}

impl Default for Exposure {
    fn default() -> Exposure {
        Exposure {
            provider_keys: Vec::new(),
            commands: CommandVariables::default(),
            hooks: Vec::new(),
            changeable: Some(Vec::new()),
        }
    }
}

type VariableList = Vec<(OsString, OsString)>;

impl Exposure {
    /// The variables for the model's commands.
    pub fn for_commands(&self, environment: &[(OsString, OsString)]) -> VariableList {
        match &self.commands {
            CommandVariables::All => environment.to_vec(),
            CommandVariables::NoSecrets { except } => self.without_secrets(environment, except),
        }
    }

    /// The names of the variables that commands don't get.
    pub fn withheld(&self, environment: &[(OsString, OsString)]) -> Vec<String> {
        let given = self.for_commands(environment);
        let is_withheld = |(name, _): &&(OsString, OsString)| !given.iter().any(|(kept, _)| kept == name);
        environment.iter().filter(is_withheld).map(|(name, _)| name.to_string_lossy().into_owned()).collect()
    }

    /// The variables for hooks and MCP servers that the user configured: all except the keys of model providers.
    pub fn for_users_programs(&self, environment: &[(OsString, OsString)]) -> VariableList {
        let keys = self.values_of_provider_keys(environment);
        let is_kept = |(name, value): &&(OsString, OsString)| {
            is_among(name, &self.hooks)
                || !(is_among(name, &self.provider_keys) || keys.contains(&value.as_os_str()))
        };
        environment.iter().filter(is_kept).cloned().collect()
    }

    /// The variables for a repository's hooks and MCP servers.
    pub fn for_programs_of_repository(&self, environment: &[(OsString, OsString)]) -> VariableList {
        self.without_secrets(environment, &[])
    }

    fn without_secrets(&self, environment: &[(OsString, OsString)], except: &[String]) -> VariableList {
        let keys = self.values_of_provider_keys(environment);
        let is_kept = |(name, value): &&(OsString, OsString)| {
            is_among(name, except)
                || !(is_among(name, &self.provider_keys)
                    || keys.contains(&value.as_os_str())
                    || !is_known_or_plain(&name.to_string_lossy(), &value.to_string_lossy()))
        };
        environment.iter().filter(is_kept).cloned().collect()
    }

    /// Returns the values of the providers' keys: a copy of a key under another name must be withheld too.
    fn values_of_provider_keys<'e>(&self, environment: &'e [(OsString, OsString)]) -> Vec<&'e OsStr> {
        let keys = environment.iter().filter(|(name, _)| is_among(name, &self.provider_keys));
        keys.map(|(_, value)| value.as_os_str()).filter(|value| value.len() >= KEY_BYTES_MIN).collect()
    }
}

fn is_among(name: &OsStr, names: &[String]) -> bool {
    names.iter().any(|listed| name == listed.as_str())
}

/// Variables of systems, shells, terminals and toolchains whose values are not plain, and the ends of their names.
const KNOWN: &str = "ARGS COLORS COLORTERM DEBUG DISPLAY EDITOR FLAGS FORMAT FEATURES GIT_AUTHOR_NAME GIT_COMMITTER_NAME LANG LANGUAGE \
                     LESS LESSOPEN LOG LOGNAME MODULES OPTIONS OPTS OSTYPE PAGER PS1 RUSTDOC SESSION_MANAGER SHELLOPTS TARGET TERM \
                     TITLE TZ USER VERSION VISUAL XDG_DATA_DIRS XDG_CONFIG_DIRS PROXY BRANCH EMAIL HOST HOSTNAME FILTER";

/// Words in the names of variables whose values are short secrets.
const OF_SHORT_SECRETS: &str = "COOKIE CREDS DSN LOGIN MNEMONIC PASSPHRASE PHRASE PIN PW SALT SEED WEBHOOK";

/// Whether a program may get a variable: its name is known, or its value could not be a secret, such as a path, a number or a
/// word. New kinds of secrets are neither.
fn is_known_or_plain(name: &str, value: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let is_end =
        |known: &str| upper.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    let is_known =
        KNOWN.split_whitespace().any(is_end) || upper.ends_with("FLAGS") || upper.starts_with("LC_");
    let is_short_secret = upper.split('_').any(|word| {
        OF_SHORT_SECRETS.split(' ').any(|secret| secret == word) && (word == "PIN" || !is_switch(value))
    });
    !is_secret_variable(name, value) && !is_short_secret && (is_known || is_plain(value))
}

/// Whether a value could not be a secret: paths, words, or an address without a user and without a long path.
fn is_plain(value: &str) -> bool {
    let of_paths = value.strip_prefix("unix:path=").unwrap_or(value);
    let place = match value.split_once("://") {
        Some((scheme, rest)) if is_word(scheme) => rest.split_once('/').unwrap_or((rest, "")),
        _ => (value, ""),
    };
    let (host, port) = place.0.split_once(':').unwrap_or((place.0, ""));
    of_paths.split(':').all(|path| path.is_empty() || is_path(path))
        || value.split(',').all(is_word)
        || [host, port, place.1].into_iter().all(is_word)
}

/// Whether a text consists of words and numbers that are too short for a secret.
fn is_word(text: &str) -> bool {
    const LETTERS_MAX: usize = 24;
    const DIGITS_MAX: usize = 5;
    text.len() <= 3 * LETTERS_MAX
        && text.split(['.', '-', '_', '+', '/']).all(|piece| {
            let digits = piece.bytes().filter(u8::is_ascii_digit).count();
            piece.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && piece.len() <= LETTERS_MAX
                && (digits < 3 || (digits == piece.len() && digits <= DIGITS_MAX))
        })
}

/// Whether an environment variable contains a secret, by its name or value.
pub fn is_secret_variable(name: &str, value: &str) -> bool {
    let is_by_name = |name: &str, value: &str| is_secret_name(name) && !is_switch(value) && !is_path(value);
    // `-Dpassword=…` of Java, `password=…` of a connection.
    let options = value.split([' ', ';', '&', '?']).filter_map(|option| option.split_once('='));
    let mut options = options.map(|(name, value)| (name.trim_start_matches(['-', 'D', 'P']), value));
    is_by_name(name, value)
        || options.any(|(name, value)| is_by_name(name, value))
        || matches!(mask(&format!("{name}={value}")), std::borrow::Cow::Owned(_))
}

/// Whether the value is not a secret despite its name: `FORCE_AUTH=1`, `MAX_TOKENS_KEY=4096`.
fn is_switch(value: &str) -> bool {
    const WORDS: [&str; 8] = ["true", "false", "yes", "no", "on", "off", "none", "null"];
    let is_number = value.len() <= 5 && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number || WORDS.contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_recognised_by_name_or_value() {
        for (name, value) in [
            ("ANTHROPIC_API_KEY", "made-up"),
            ("GH_PAT", "made-up"),
            ("GITHUB_TOKEN", "made-up"),
            ("REGISTRY_AUTH", "dXNlcjptYWRlLXVw"),
            ("CREDENTIALS", "user made-up"),
            ("MYSQL_PWD", "hunter2"),
            ("PGPASSWORD", "hunter2"),
            ("SSHPASS", "hunter2"),
            ("DB_PASSWORD", "x"),
            ("DJANGO_SECRET", "made up"),
            ("npm_config_//registry.example/:_authToken", "made-up-1"),
            ("DB_URL", "postgres://app:made-up-9@db.example/app"),
            ("DATABASE_URL", "mysql://root:s3cr3tw0rd@10.0.0.1/x"),
            ("HTTPS_PROXY", "http://me:made-up-9@proxy.example:8080"),
            ("ANYTHING", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
            ("AWS_SECRET_ACCESS_KEY", "/aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5zA7"),
        ] {
            assert!(is_secret_variable(name, value), "{name}");
        }
    }

    #[test]
    fn ordinary_variables_are_no_secrets() {
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("PWD", "/home/me/src/epitome"),
            ("OLDPWD", "/home/me"),
            ("HOME", "/home/me"),
            ("LANG", "en_US.UTF-8"),
            ("TERM", "xterm-256color"),
            ("SSH_AUTH_SOCK", "/run/user/1000/keyring/ssh"),
            ("XAUTHORITY", "/run/user/1000/gdm/Xauthority"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"),
            ("KEYBOARD_LAYOUT", "de"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/gcp.json"),
            ("FORCE_AUTH", "1"),
            ("SESSION_MANAGER", "local/host:@/tmp/.ICE-unix/1234,unix/host:/tmp/.ICE-unix/1234"),
            ("INVOCATION_ID", "0f6bd6e2a5a94a9ea1ab1e3fd0dc0a4e"),
            ("CARGO_HOME", "/home/me/.cargo"),
            ("RUSTFLAGS", "-C target-cpu=native"),
            ("NVM_DIR", "/home/me/.nvm"),
            ("LS_COLORS", "rs=0:di=01;34:ln=01;36:mh=00"),
            ("DATABASE_URL", "postgres://localhost/app_test"),
            ("GIT_AUTHOR_NAME", "Ann Author"),
            ("VSCODE_GIT_IPC_HANDLE", "/run/user/1000/vscode-git-0a1b2c3d4e.sock"),
            ("LESSOPEN", "|/usr/bin/lesspipe %s"),
            ("JAVA_HOME", "/usr/lib/jvm/java-21-openjdk-amd64"),
            ("NIX_STORE", "/nix/store"),
            ("HTTPS_PROXY", "http://proxy.example:8080"),
            ("EMPTY_TOKEN_FILE", ""),
        ] {
            assert!(!is_secret_variable(name, value), "{name}");
        }
    }

    /// All of 17 kinds of secrets whose names contain no word for a secret were passed on.
    #[test]
    fn only_known_and_plain_variables_are_passed_on() {
        for (name, value) in [
            ("GPG_PASSPHRASE", "correct horse 9 battery"),
            ("APP_CREDS", "user:made-up-99"),
            (
                "SLACK_WEBHOOK",
                "https://hooks.slack.com/services/T0000000A/B0000000A/abcdefghijklmnopqrstuvwx",
            ),
            ("DSN", "app:made-up-9@tcp(db:3306)/app"),
            ("SENTRY_DSN", "https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1"),
            ("GCP_SA", r#"{"type":"service_account","private_key":"x"}"#),
            ("COOKIE", "session=8f14e45fceea167a5a36dedd4bea2543"),
            ("JDBC", "jdbc:postgresql://db/app?user=app&password=made-up-99"),
            ("BASIC", "Basic YXBwOm1hZGUtdXAtOTk="),
            ("SIGNING_PIN", "739155"),
            ("MASTER", "0123456789abcdef0123456789abcdef"),
            ("SSH_KEY_B64", "LS0tLS1CRUdJTiBPUEVOU1NIIFBSSVZBVEUgS0VZLS0tLS0K"),
            ("DJANGO_SETTINGS", "SECRET_KEY=django-insecure-abc123def456ghi789"),
        ] {
            assert!(!is_known_or_plain(name, value), "{name}");
        }
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("LANG", "en_US.UTF-8"),
            ("LC_ALL", "de_DE@euro"),
            ("TERM", "xterm-256color"),
            ("RUSTFLAGS", "-C target-cpu=native"),
            ("RUST_LOG", "epitome=debug,hyper=info"),
            ("LS_COLORS", "rs=0:di=01;34:ln=01;36:mh=00"),
            ("GIT_AUTHOR_NAME", "Ann Author"),
            ("NODE_ENV", "production"),
            ("NODE_OPTIONS", "--max-old-space-size=4096"),
            ("CI", "true"),
            ("PORT", "8080"),
            ("DATABASE_URL", "postgres://localhost/app_test"),
            ("REDIS_URL", "redis://localhost:6379/0"),
            ("HTTPS_PROXY", "http://proxy.example:8080"),
            ("DJANGO_SETTINGS_MODULE", "app.settings.test"),
            ("PYTHON_VERSION", "3.13.1"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"),
            ("FEATURE", "checkout-v2"),
            ("EMPTY", ""),
        ] {
            assert!(is_known_or_plain(name, value), "{name}");
        }
    }

    #[test]
    fn each_kind_of_program_gets_its_own_variables() {
        let environment: Vec<(OsString, OsString)> = [
            ("PATH", "/bin"),
            ("ACME_LOGIN", "made-up-provider-key"),
            ("COPY", "made-up-provider-key"),
            ("GH_TOKEN", "made-up"),
        ]
        .map(|(name, value)| (name.into(), value.into()))
        .into();
        let names = |variables: VariableList| -> Vec<String> {
            variables.into_iter().filter_map(|(name, _)| name.into_string().ok()).collect()
        };
        let exposure = Exposure { provider_keys: vec!["ACME_LOGIN".to_owned()], ..Exposure::default() };
        assert_eq!(names(exposure.for_commands(&environment)), ["PATH"]);
        assert_eq!(names(exposure.for_users_programs(&environment)), ["PATH", "GH_TOKEN"]);
        assert_eq!(names(exposure.for_programs_of_repository(&environment)), ["PATH"]);
        let some = CommandVariables::NoSecrets { except: vec!["GH_TOKEN".to_owned()] };
        let exposure = Exposure { commands: some, ..exposure };
        assert_eq!(names(exposure.for_commands(&environment)), ["PATH", "GH_TOKEN"]);
        assert_eq!(names(exposure.for_programs_of_repository(&environment)), ["PATH"]);
        let exposure =
            Exposure { commands: CommandVariables::All, hooks: vec!["ACME_LOGIN".to_owned()], ..exposure };
        assert_eq!(exposure.for_commands(&environment).len(), 4);
        assert_eq!(names(exposure.for_users_programs(&environment)), ["PATH", "ACME_LOGIN", "GH_TOKEN"]);
    }
}
