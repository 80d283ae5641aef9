//! Caches of package managers and compilers, which commands may change, and separate ones in place of those that have
//! programs of the user.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::open;
use crate::sandbox::command_disk::CommandDisk;
use epitome_platform::root::resolve;
use epitome_platform::sandbox::SandboxPaths;

/// Paths below a home directory where package managers and compilers cache downloads and builds. If a file next to
/// the cache is executed when programs start, the entry is narrowed to exclude that file. Of `~/.cache`, the list
/// contains only what the next build or check reads: shells and browsers execute other parts of it, such as the machine
/// code of shaders. Nor does it contain programs that `npx`, `uvx`, `pnpm dlx`, `pixi exec` and the like start from a cache
/// without a check, nor stores whose files are those of installed programs, by hard links: those of pnpm, Bun, Conda and
/// pixi.
const CACHES_IN_HOME: &str = ".cache/bazel .cache/ccache .cache/clangd .cache/composer .cache/coursier/v1 .cache/fontconfig \
    .cache/go-build .cache/golangci-lint .cache/gopls .cache/matplotlib .cache/mypy .cache/node-gyp .cache/pdm \
    .cache/pip .cache/pnpm .cache/pypoetry/artifacts .cache/pypoetry/cache .cache/rattler/cache/repodata \
    .cache/ruff .cache/sccache .cache/staticcheck .cache/turbo .cache/typescript .cache/yarn .cache/zig \
    .cargo/registry .cargo/git .cargo/.package-cache .cargo/.package-cache-mutate .cargo/.global-cache \
    .npm/_cacache .npm/_logs .yarn/berry/cache .gradle/caches .gradle/daemon .m2/repository .ivy2/cache go/pkg \
    .nuget/packages .bundle/cache .cabal/packages .composer/cache .julia/compiled .hex/packages \
    .pub-cache/hosted";

/// The same as paths.
pub(in crate::sandbox) fn in_home(home: &Path) -> impl Iterator<Item = PathBuf> {
    CACHES_IN_HOME.split(' ').map(|name| home.join(name))
}

/// A directory of such programs in one of the caches.
pub(super) const RUN_FROM_CACHE: &str = ".cache/pnpm/dlx";

/// Go's cache of modules.
const GO_MODULES: &str = "go/pkg/mod";

/// The directories in it that may contain other versions of Go, which `go` starts when a `go.mod` asks for them. Ordinary
/// modules next to them are in `x`.
const GO_VERSIONS: [&str; 2] = ["golang.org", "cache/download/golang.org"];

/// A cache of programs that is separate from the user's: the variable that names it, the user's cache, without which it
/// isn't needed, and its directory.
pub(in crate::sandbox) struct SeparateCache(&'static str, Option<&'static str>, &'static str);

/// The environments of `uvx` and of the user's projects share the files of uv's cache.
pub(in crate::sandbox) const CACHES_OF_COMMANDS: [SeparateCache; 1] =
    [SeparateCache("UV_CACHE_DIR", Some(".cache/uv"), ".cache/epitome/uv")];

/// Commands with a network can install packages, but not into the user's stores. Without one, what the user's stores have
/// is of more use than empty caches.
pub(in crate::sandbox) const CACHES_WITH_NETWORK: [SeparateCache; 3] = [
    SeparateCache("BUN_INSTALL_CACHE_DIR", Some(".bun"), ".cache/epitome/bun"),
    SeparateCache("CONDA_PKGS_DIRS", Some(".conda"), ".cache/epitome/conda"),
    SeparateCache("RATTLER_CACHE_DIR", Some(".cache/rattler"), ".cache/epitome/rattler"),
];

/// Servers are often started by `uvx`, `npx` and `bunx`, which install them. Commands can't change these.
pub(in crate::sandbox) const CACHES_OF_SERVERS: [SeparateCache; 3] = [
    SeparateCache("UV_CACHE_DIR", None, ".cache/epitome/servers/uv"),
    SeparateCache("npm_config_cache", None, ".cache/epitome/servers/npm"),
    SeparateCache("BUN_INSTALL_CACHE_DIR", Some(".bun"), ".cache/epitome/servers/bun"),
];

/// Protects the versions of Go in the cache of modules.
pub(super) fn close_go_versions(paths: &mut SandboxPaths, home: Option<&Path>) {
    let modules = home.and_then(|home| resolve(&home.join(GO_MODULES)).ok());
    let Some(modules) = modules.filter(|modules| modules.is_dir()) else { return };
    for path in GO_VERSIONS.map(|name| modules.join(name)) {
        let ordinary = path.join("x");
        // Only an existing directory can be protected.
        let _ = fs::create_dir_all(&ordinary);
        if resolve(&ordinary).is_ok_and(|real| real == ordinary) {
            let above = path.ancestors().skip(1).take_while(|above| above.starts_with(&modules));
            paths.fixed.extend(above.map(Path::to_path_buf));
            paths.fixed.push(ordinary);
            paths.closed.push(path);
        }
    }
}

/// Creates separate caches, makes them writable, and returns the variables for them. Variables that the user has set stay.
pub(in crate::sandbox) fn separate(
    caches: &[SeparateCache],
    disk: &CommandDisk<'_>,
    paths: &mut SandboxPaths,
) -> Vec<(OsString, OsString)> {
    let Some(home) = disk.real_home() else { return Vec::new() };
    let is_set = |variable: &str| disk.variable(variable).is_some();
    let mut variables = Vec::new();
    for SeparateCache(variable, of_user, own) in caches {
        let path = home.join(own);
        let is_needed = of_user.is_none_or(|of_user| home.join(of_user).is_dir()) && !is_set(variable);
        if is_needed && fs::create_dir_all(&path).is_ok() {
            open(paths, path.clone());
            variables.push(((*variable).into(), path.into()));
        }
    }
    variables
}
