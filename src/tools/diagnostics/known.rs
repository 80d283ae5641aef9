//! The known language servers, as data, and where they are installed.

use std::path::{Path, PathBuf};

use epitome_platform::program::named;
use epitome_tools::Workspace;

/// A language server.
#[derive(Debug)]
pub struct KnownServer {
    /// The name in `[diagnostics] servers`.
    pub name: &'static str,
    command: &'static [&'static str],
    /// File extensions, each with the protocol's id of its language.
    languages: &'static [(&'static str, &'static str)],
}

/// Also known by what it needs beyond the protocol.
pub const RUST_ANALYZER: &str = "rust-analyzer";

/// The title of the progress by which gopls shows that it can't load the workspace. It ends once the cause is corrected.
pub const LOAD_FAILED: &str = "Error loading workspace";

const PYTHON: &[(&str, &str)] = &[("py", "python"), ("pyi", "python")];
const C: &[(&str, &str)] =
    &[("c", "c"), ("h", "c"), ("cc", "cpp"), ("cpp", "cpp"), ("cxx", "cpp"), ("hh", "cpp"), ("hpp", "cpp")];
const TYPESCRIPT: &[(&str, &str)] = &[
    ("ts", "typescript"),
    ("mts", "typescript"),
    ("cts", "typescript"),
    ("tsx", "typescriptreact"),
    ("js", "javascript"),
    ("mjs", "javascript"),
    ("cjs", "javascript"),
    ("jsx", "javascriptreact"),
];

/// If several support a language, the first that is installed is used.
pub static KNOWN: [KnownServer; 9] = [
    KnownServer { name: RUST_ANALYZER, command: &[RUST_ANALYZER], languages: &[("rs", "rust")] },
    KnownServer { name: "gopls", command: &["gopls"], languages: &[("go", "go")] },
    KnownServer { name: "basedpyright", command: &["basedpyright-langserver", "--stdio"], languages: PYTHON },
    KnownServer { name: "pyright", command: &["pyright-langserver", "--stdio"], languages: PYTHON },
    KnownServer { name: "pylsp", command: &["pylsp"], languages: PYTHON },
    KnownServer {
        name: "typescript-language-server",
        command: &["typescript-language-server", "--stdio"],
        languages: TYPESCRIPT,
    },
    KnownServer { name: "clangd", command: &["clangd"], languages: C },
    KnownServer { name: "zls", command: &["zls"], languages: &[("zig", "zig")] },
    KnownServer { name: "ruby-lsp", command: &["ruby-lsp"], languages: &[("rb", "ruby")] },
];

/// An installed server, for one language.
#[derive(Clone, Debug)]
pub struct Installed {
    pub server: &'static KnownServer,
    pub program: PathBuf,
    pub language: &'static str,
}

impl Installed {
    pub fn arguments(&self) -> &'static [&'static str] {
        &self.server.command[1..]
    }
}

/// Returns the server for a file that is installed on the `PATH` of the workspace's environment. `wanted` are the names
/// that the user's settings allow; `None` allows all. Reads the file system.
pub fn for_file(path: &Path, workspace: &Workspace, wanted: Option<&[String]>) -> Option<Installed> {
    let extension = path.extension()?.to_str()?;
    KNOWN
        .iter()
        .filter(|server| wanted.is_none_or(|wanted| wanted.iter().any(|name| name == server.name)))
        .find_map(|server| {
            let (_, language) = server.languages.iter().find(|(known, _)| *known == extension)?;
            let program = on_path(server.command[0], workspace)?;
            Some(Installed { server, program, language })
        })
}

/// Finds a program on the `PATH`. Directories of the workspace are skipped, because programs of a repository are
/// untrusted.
fn on_path(program: &str, workspace: &Workspace) -> Option<PathBuf> {
    named(program, &workspace.environment).find(|program| !workspace.contains(program))
}
