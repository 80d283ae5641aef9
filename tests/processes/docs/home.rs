//! A user's home with a repository, and the files that a page installs there.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use epitome::paths::Paths;
use tempfile::TempDir;

use super::page::Block;

/// The home directory that the pages show.
const HOME_SHOWN: &str = "/home/ann";

pub struct Home {
    directory: TempDir,
    more: Vec<(OsString, OsString)>,
}

impl Home {
    /// A home with additional environment variables.
    pub fn with(more: &[(&str, String)]) -> Home {
        let more = more.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let home = Home { directory: tempfile::tempdir().expect("a temporary directory"), more };
        std::fs::create_dir_all(home.app().join(".git")).expect("it is ours");
        home
    }

    fn path(&self) -> PathBuf {
        self.directory.path().canonicalize().expect("it is there")
    }

    /// The repository in which sessions run.
    pub fn app(&self) -> PathBuf {
        self.path().join("app")
    }

    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let binary = Path::new(env!("CARGO_BIN_EXE_epitome"));
        let path = format!("{}:/usr/bin:/bin", binary.parent().expect("it has a folder").display());
        let own = [("HOME", self.path().into()), ("PATH", path.into()), ("TZ", "UTC".into())];
        // The secret that signs the page's webhook.
        let of_pages = [("AUDIT_TOKEN", "Bearer key".into()), ("AUDIT_SECRET", "secret".into())];
        let own = own.into_iter().chain(of_pages);
        let own = own.map(|(name, value): (&str, OsString)| (name.into(), value));
        own.chain(self.more.iter().cloned()).collect()
    }

    pub fn paths(&self) -> Paths {
        let environment = self.environment();
        Paths::from_environment(|name| {
            environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        })
    }

    /// Installs a block according to its info string. Returns `None` if it is not a file.
    pub fn install(&self, block: &Block) -> Option<PathBuf> {
        let base = if block.get("in") == Some("repo") { self.app() } else { self.path() };
        let file = match (block.language.as_str(), &block.says) {
            ("sh", says) => format!(".epitome/hooks/{}", says.get("hook")?),
            ("yaml", says) => format!(".epitome/hooks/{}", says.get("declarative")?),
            ("markdown", says) if says.contains_key("recipe") => {
                format!(".epitome/recipes/{}.md", says["recipe"])
            }
            ("markdown", says) if says.contains_key("command") => {
                format!(".claude/commands/{}.md", says["command"])
            }
            ("markdown", says) => format!(".claude/skills/{}/SKILL.md", says.get("skill")?),
            ("toml", says) if says.contains_key("config") => ".epitome/config.toml".to_owned(),
            ("toml", says) => format!(".gemini/commands/{}.toml", says.get("gemini")?),
            _ => return None,
        };
        let file = base.join(file);
        std::fs::create_dir_all(file.parent().expect("a file has a folder")).expect("it is ours");
        std::fs::write(&file, &block.text).expect("it is ours");
        if block.language == "sh" {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
        Some(file)
    }

    /// The output of a shell line.
    pub fn typed(&self, line: &str) -> String {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("{line} 2>&1")).current_dir(self.app());
        shell.env_clear().envs(self.environment());
        let output = shell.stdin(std::process::Stdio::null()).output().expect("there is a shell");
        let text = String::from_utf8_lossy(&output.stdout);
        text.replace(&*self.path().to_string_lossy(), HOME_SHOWN)
    }
}
