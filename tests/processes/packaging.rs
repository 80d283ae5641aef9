//! Checks what is published next to the program: its version and addresses are in several files, and the scripts that
//! make and install releases are run with a small program in place of the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = "#!/bin/sh\necho \"epitome 0: $*\"\n";

/// The programs beside it.
const HELPERS: [&str; 4] = ["epitome-import", "epitome-compact", "epitome-ahp", "acp-check"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A value of the root manifest's `[workspace.package]`.
fn manifest(key: &str) -> String {
    let manifest: toml::Value = toml::from_str(&text("Cargo.toml")).expect("the manifest is TOML");
    manifest["workspace"]["package"][key].as_str().expect("it is a text").to_owned()
}

#[test]
fn versions_and_addresses_agree_with_the_manifest() {
    let (version, repository) = (manifest("version"), manifest("repository"));
    let agent: Value =
        serde_json::from_str(&text("editors/registry/epitome/agent.json")).expect("it is JSON");
    assert_eq!(agent["version"], version);
    assert_eq!(agent["repository"], repository);
    for (platform, target) in
        [("linux-x86_64", "x86_64-unknown-linux-gnu"), ("linux-aarch64", "aarch64-unknown-linux-gnu")]
    {
        let archive = format!("{repository}/releases/download/v{version}/epitome-{version}-{target}.tar.gz");
        assert_eq!(agent["distribution"]["binary"][platform]["archive"], archive);
    }
    let package: Value = serde_json::from_str(&text("packaging/sdk/typescript/package.json")).expect("JSON");
    let wheel: toml::Value =
        toml::from_str(&text("packaging/sdk/python/pyproject.toml")).expect("it is TOML");
    assert_eq!(
        (&package["version"], &wheel["project"]["version"]),
        (&version.clone().into(), &version.clone().into())
    );
    assert!(text("packaging/action/action.yml").contains(&format!("default: {version}\n")));
    for path in [
        "packaging/install.sh",
        "packaging/Dockerfile",
        "packaging/action/install.sh",
        "packaging/sdk/typescript/package.json",
        "packaging/sdk/typescript/README.md",
        "packaging/sdk/python/README.md",
        "packaging/sdk/python/pyproject.toml",
        ".github/ISSUE_TEMPLATE/config.yml",
    ] {
        let text = text(path);
        let addresses = text.matches("github.com/").count();
        assert!(addresses > 0 && text.matches(&repository).count() == addresses, "{path}: {repository}");
    }
    assert!(text("packaging/archive.sh").contains("GLIBC_MAX:-2.28"));
    assert!(text("docs/install.md").contains("glibc 2.28 or newer"));
    let manifest = text("Cargo.toml");
    let release = "\"{ repo }/releases/download/v{ version }/epitome-{ version }-{ target }.tar.gz\"";
    assert!(manifest.contains(&format!("pkg-url = {release}")), "binstall looks for {release}");
}

/// Regression: the registry warned that a crate has no address, because its manifest was written after the others had got
/// theirs. It refuses those without a description or a license when they are uploaded.
#[test]
fn each_published_crate_has_what_the_registry_shows() {
    let workspace: toml::Value = toml::from_str(&text("Cargo.toml")).expect("the manifest is TOML");
    let members = workspace["workspace"]["members"].as_array().expect("a list");
    let mut published = 0;
    for member in members.iter().filter_map(toml::Value::as_str) {
        let manifest: toml::Value = toml::from_str(&text(&format!("{member}/Cargo.toml"))).expect("TOML");
        let package = &manifest["package"];
        if package.get("publish") == Some(&toml::Value::Boolean(false)) {
            continue;
        }
        published += 1;
        for key in ["description", "license", "repository"] {
            assert!(package.get(key).is_some(), "{member} has no {key}");
        }
    }
    assert!(published > 25, "{published} of {}", members.len());
}

/// Whether the tools that make a release are there; without them there is nothing to test.
fn has_tools() -> bool {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success());
    let missing: Vec<&str> =
        ["bash", "tar", "gzip", "sha256sum", "curl"].into_iter().filter(|tool| !has(tool)).collect();
    if !missing.is_empty() {
        eprintln!("skipped: not installed: {}", missing.join(", "));
    }
    missing.is_empty()
}

struct Release {
    directory: tempfile::TempDir,
    target: String,
}

impl Release {
    fn new() -> Release {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = directory.path().join("program");
        for program in std::iter::once(&program).chain(&HELPERS.map(|name| directory.path().join(name))) {
            fs::write(program, PROGRAM).expect("it is written");
            fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        // A target without glibc's rules, then renamed: the program here is a script.
        let made = Command::new(root().join("packaging/archive.sh"))
            .arg("script")
            .arg(&program)
            .arg(directory.path().join("dist"))
            .output()
            .expect("bash runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let release = Release { directory, target: format!("{}-unknown-linux-gnu", std::env::consts::ARCH) };
        let (script, archive) = (release.archive("script"), release.archive(&release.target));
        fs::rename(&script, &archive).expect("it was made");
        let checksum = fs::read_to_string(script.with_extension("gz.sha256")).expect("it was made");
        let checksum = checksum.replace("-script.", &format!("-{}.", release.target));
        fs::write(archive.with_extension("gz.sha256"), checksum).expect("it is written");
        release
    }

    fn archive(&self, target: &str) -> PathBuf {
        self.directory.path().join(format!("dist/epitome-{}-{target}.tar.gz", manifest("version")))
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn install(&self) -> Output {
        Command::new("sh")
            .arg(self.directory.path().join("dist/install.sh"))
            .env("HOME", self.home())
            .env_remove("EPITOME_INSTALL_DIR")
            .env("EPITOME_DOWNLOAD_URL", format!("file://{}", self.directory.path().join("dist").display()))
            .output()
            .expect("sh runs")
    }
}

#[test]
fn a_release_is_installed_and_updated_in_an_empty_home() {
    if !has_tools() {
        return;
    }
    let release = Release::new();
    let program = release.home().join(".local/bin/epitome");
    for _ in ["install", "update"] {
        let installed = release.install();
        let said = String::from_utf8_lossy(&installed.stdout).into_owned();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        assert!(
            said.contains("Installed epitome 0: --version as ") && said.contains("is not in your PATH"),
            "{said}"
        );
        assert_eq!(fs::read_to_string(&program).expect("it is installed"), PROGRAM);
    }
    let siblings = fs::read_dir(program.parent().expect("it has one")).expect("it exists");
    assert_eq!(siblings.count(), 1 + HELPERS.len(), "nothing else is left there");
}

#[test]
fn a_damaged_download_installs_nothing_and_keeps_the_installed_program() {
    if !has_tools() {
        return;
    }
    let release = Release::new();
    let program = release.home().join(".local/bin/epitome");
    fs::create_dir_all(program.parent().expect("it has one")).expect("a new directory");
    fs::write(&program, "the old one").expect("it is written");
    let archive = release.archive(&release.target);
    let mut bytes = fs::read(&archive).expect("it was made");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&archive, bytes).expect("it is written");
    let refused = release.install();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("checksum") && said.contains("nothing was installed"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&program).expect("it is there"), "the old one");

    fs::remove_file(&archive).expect("it was there");
    let refused = release.install();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("could not be downloaded"), "{said}");
    assert_eq!(fs::read_to_string(&program).expect("it is there"), "the old one");
}

/// `EPITOME_RELEASE` names a release binary to check; this program itself is one that needs the glibc of this machine.
#[test]
fn a_binary_that_needs_a_newer_glibc_is_not_released() {
    let has_readelf = Command::new("readelf").arg("--version").output().is_ok();
    if !has_tools() || !has_readelf || cfg!(not(all(target_os = "linux", target_env = "gnu"))) {
        eprintln!("skipped: needs readelf, and a system with glibc");
        return;
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let archive = |binary: &Path, glibc_max: &str| {
        Command::new(root().join("packaging/archive.sh"))
            .args([Path::new(&target), binary, directory.path()])
            .env("GLIBC_MAX", glibc_max)
            .output()
            .expect("bash runs")
    };
    let refused = archive(Path::new(env!("CARGO_BIN_EXE_epitome")), "2.2");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("releases may need at most 2.2"), "{said}");
    assert_eq!(fs::read_dir(directory.path()).expect("it exists").count(), 0, "nothing was made");
    match std::env::var_os("EPITOME_RELEASE") {
        None => eprintln!("skipped: EPITOME_RELEASE names no release binary"),
        Some(release) => {
            let made = archive(Path::new(&release), "2.28");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
    }
}

#[test]
fn one_script_names_the_owner_everywhere() {
    let copy = tempfile::tempdir().expect("a temporary directory");
    let files =
        ["Cargo.toml", "packaging/install.sh", "packaging/owner.sh", "editors/registry/epitome/agent.json"];
    for file in files {
        let to = copy.path().join(file);
        fs::create_dir_all(to.parent().expect("it has one")).expect("made");
        fs::copy(root().join(file), to).expect("copied");
    }
    let run = |owner: &str| {
        Command::new(copy.path().join("packaging/owner.sh")).arg(owner).output().expect("bash runs").status
    };
    assert!(!run("a/b").success(), "no name of an owner");
    assert!(run("ann").success());
    for file in files.into_iter().filter(|file| !file.ends_with("owner.sh")) {
        let text = fs::read_to_string(copy.path().join(file)).expect("it is there");
        assert!(text.contains("github.com/ann/epitome") && !text.contains("OWNER/epitome"), "{file}");
    }
}

#[test]
fn the_installer_of_a_clone_belongs_to_no_release() {
    let refused = Command::new("sh")
        .arg(root().join("packaging/install.sh"))
        .env("HOME", "/nonexistent")
        .output()
        .expect("sh runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("cargo install --path . --locked"), "{said}");
}
