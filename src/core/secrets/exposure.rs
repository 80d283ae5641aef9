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
                    || is_secret_variable(&name.to_string_lossy(), &value.to_string_lossy()))
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

/// Whether an environment variable contains a secret, by its name or value.
pub fn is_secret_variable(name: &str, value: &str) -> bool {
    let by_name = is_secret_name(name) && !is_switch(value) && !is_path(value);
    by_name || matches!(mask(&format!("{name}={value}")), std::borrow::Cow::Owned(_))
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
