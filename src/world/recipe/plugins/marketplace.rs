//! Marketplaces: files that list plugins and their sources.
//!
//! Formats: code.claude.com/docs/en/plugin-marketplaces, and developers.openai.com/codex/plugins/build for Codex,
//! whose lists have fewer fields.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::FILE_BYTES_MAX;
use super::manifest::below;
use crate::text_file::read_text;
use epitome_thread::problem::Problem;

/// Paths of the list below a marketplace's folder.
const FILES: [&str; 2] = [".claude-plugin/marketplace.json", ".agents/plugins/marketplace.json"];
/// Maximum size of a list in bytes; the largest known one has 300 KB.
const LIST_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A list of plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct Marketplace {
    pub entries: Vec<MarketplaceEntry>,
}

/// A plugin of a marketplace.
#[derive(Clone, Debug, PartialEq)]
pub struct MarketplaceEntry {
    pub name: String,
    pub description: String,
    pub source: EntrySource,
    /// The replacement for the manifest of a plugin that has none.
    pub manifest: Option<Value>,
}

/// The location of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntrySource {
    /// A folder of the marketplace.
    Folder(PathBuf),
    /// A folder of a Git repository; empty for its root.
    Git { url: String, reference: Option<String>, folder: PathBuf },
    /// A package of a registry: its name, with its version if that is given.
    Npm { package: String, registry: Option<String> },
    /// A kind of source that is not supported; completes a sentence.
    Unsupported(String),
}

impl Marketplace {
    /// The list of a folder; `None` if it has none. Blocks on disk I/O.
    pub fn read(root: &Path) -> Option<Result<Marketplace, Problem>> {
        let path = FILES.map(|file| root.join(file)).into_iter().find(|path| path.is_file())?;
        let text = read_text(&path, "a list of plugins", LIST_BYTES_MAX).map_err(|why| why.to_string());
        let list = text
            .and_then(|text| parse(&text).map_err(|why| format!("the list of plugins can't be read: {why}")));
        Some(list.map_err(|why| Problem::new(path, why)))
    }

    pub fn find(&self, name: &str) -> Option<&MarketplaceEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// The marketplaces that Claude Code knows, with their local folders; `claude` is Claude Code's folder.
pub fn known(claude: &Path) -> BTreeMap<String, PathBuf> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct KnownMarketplace {
        install_location: PathBuf,
    }
    let path = claude.join("plugins/known_marketplaces.json");
    let text = read_text(&path, "a list of marketplaces", FILE_BYTES_MAX).unwrap_or_default();
    let all: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap_or_default();
    let location = |(name, value)| {
        Some((name, serde_json::from_value::<KnownMarketplace>(value).ok()?.install_location))
    };
    all.into_iter().filter_map(location).collect()
}

fn parse(text: &str) -> serde_json::Result<Marketplace> {
    #[derive(Deserialize)]
    struct ListFile {
        #[serde(default)]
        metadata: ListMetadata,
        plugins: Vec<Value>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ListMetadata {
        plugin_root: Option<String>,
    }
    let list: ListFile = serde_json::from_str(text)?;
    let base = list.metadata.plugin_root.unwrap_or_default();
    let entry = |value: Value| {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let name = text("name").filter(|name| super::manifest::is_name(name))?.to_owned();
        let description = text("description").unwrap_or_default().to_owned();
        let source = source(value.get("source").unwrap_or(&Value::Null), &base);
        Some(MarketplaceEntry { name, description, source, manifest: manifest(value) })
    };
    Ok(Marketplace { entries: list.plugins.into_iter().filter_map(entry).collect() })
}

/// The fields of an entry that a manifest also has.
fn manifest(entry: Value) -> Option<Value> {
    let Value::Object(mut fields) = entry else { return None };
    fields.remove("source");
    Some(Value::Object(fields))
}

fn source(value: &Value, base: &str) -> EntrySource {
    let unsupported = |what: &str| EntrySource::Unsupported(what.to_owned());
    let folder = |path: &str| match below(path) {
        Some(folder) => EntrySource::Folder(folder),
        None => EntrySource::Unsupported(format!("{path:?}, which leads out of the marketplace")),
    };
    if let Value::String(path) = value {
        let is_bare = !path.starts_with("./") && !base.is_empty();
        return folder(&if is_bare { format!("{base}/{path}") } else { path.clone() });
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let git = |url: String| {
        let Some(folder) = below(text("path").unwrap_or_default()) else {
            return unsupported("a path that leads out of its repository");
        };
        // A commit is more precise than its branch.
        let reference = text("sha").or_else(|| text("commit")).or_else(|| text("ref"));
        EntrySource::Git { url, reference: reference.map(str::to_owned), folder }
    };
    match (text("source"), text("repo"), text("url"), text("path")) {
        (Some("github"), Some(repository), _, _) => git(format!("https://github.com/{repository}.git")),
        (Some("url" | "git" | "git-subdir"), _, Some(url), _) => git(url.to_owned()),
        (Some("npm"), ..) if let Some(package) = text("package") => {
            let version = text("version").map(|version| format!("@{version}")).unwrap_or_default();
            let registry = text("registry").map(str::to_owned);
            EntrySource::Npm { package: format!("{package}{version}"), registry }
        }
        (Some("local"), _, _, Some(path)) => folder(path),
        (Some(kind), ..) => EntrySource::Unsupported(format!("a source of the kind {kind:?}")),
        (None, ..) => unsupported("no source"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(text: &str) -> Vec<EntrySource> {
        parse(text).expect("it is a list").entries.into_iter().map(|entry| entry.source).collect()
    }

    #[test]
    fn sources_are_read_in_every_documented_form() {
        let git = |url: &str, reference: Option<&str>, folder: &str| EntrySource::Git {
            url: url.to_owned(),
            reference: reference.map(str::to_owned),
            folder: folder.into(),
        };
        for (source, wanted) in [
            (r#""./plugins/a""#, EntrySource::Folder("plugins/a".into())),
            (r#""./""#, EntrySource::Folder(PathBuf::new())),
            (r#"{"source": "local", "path": "./a"}"#, EntrySource::Folder("a".into())),
            (r#"{"source": "github", "repo": "o/r"}"#, git("https://github.com/o/r.git", None, "")),
            (
                r#"{"source": "github", "repo": "o/r", "ref": "v1", "sha": "0a1b"}"#,
                git("https://github.com/o/r.git", Some("0a1b"), ""),
            ),
            (
                r#"{"source": "git-subdir", "url": "https://x/r.git", "path": "p", "ref": "v1"}"#,
                git("https://x/r.git", Some("v1"), "p"),
            ),
            (
                r#"{"source": "npm", "package": "@a/x", "version": "^1.2"}"#,
                EntrySource::Npm { package: "@a/x@^1.2".into(), registry: None },
            ),
            (
                r#"{"source": "pip", "package": "x"}"#,
                EntrySource::Unsupported("a source of the kind \"pip\"".into()),
            ),
            (
                r#""../out""#,
                EntrySource::Unsupported("\"../out\", which leads out of the marketplace".into()),
            ),
        ] {
            let text = format!(r#"{{"name": "m", "plugins": [{{"name": "a", "source": {source}}}]}}"#);
            assert_eq!(sources(&text), [wanted], "{source}");
        }
    }

    #[test]
    fn a_common_root_and_the_fields_of_a_manifest_are_kept() {
        let list = parse(
            r#"{"name": "m", "metadata": {"pluginRoot": "./plugins"}, "plugins": [
                {"name": "a", "source": "a", "strict": false, "skills": ["./skills/x"]}, {"name": "b c"}, 7]}"#,
        );
        let list = list.expect("it is a list");
        let [entry] = &list.entries[..] else { panic!("{list:?}") };
        assert_eq!(entry.source, EntrySource::Folder("plugins/a".into()));
        let manifest = entry.manifest.as_ref().expect("it has fields");
        assert_eq!((&manifest["strict"], manifest.get("source")), (&Value::Bool(false), None));
        assert!(parse("{}").is_err());
    }
}
