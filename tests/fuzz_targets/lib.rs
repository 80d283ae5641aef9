//! The code that reads external bytes, as functions for fuzzers.
//!
//! A target takes any bytes and panics if a property does not hold for them; at the least, it checks that the code does
//! not panic. cargo-fuzz runs one target at a time (`fuzz/`); `tests/pure/fuzz.rs` runs all of them briefly on mutated
//! seeds.

mod conversation;
mod journal;
mod protocol;
mod provider;
mod tools;
mod user_files;

/// A property that holds for any input.
pub struct FuzzTarget {
    pub name: &'static str,
    /// Directories of example inputs, relative to the repository.
    pub seeds: &'static [&'static str],
    /// Panics if the property does not hold.
    pub run: fn(&[u8]),
}

pub const ALL: &[FuzzTarget] = &[
    FuzzTarget { name: "acp_line", seeds: &["fuzz/seeds/acp_line"], run: protocol::acp_line },
    FuzzTarget {
        name: "daemon_messages",
        seeds: &["fuzz/seeds/daemon_messages"],
        run: protocol::daemon_messages,
    },
    FuzzTarget { name: "protocol_fixture", seeds: &["protocol-fixtures"], run: protocol::fixture },
    FuzzTarget { name: "provider_stream", seeds: &["protocol-fixtures/providers"], run: provider::stream },
    FuzzTarget { name: "recipe", seeds: &["fuzz/seeds/recipe", "recipes"], run: user_files::recipe },
    FuzzTarget { name: "hook_output", seeds: &["fuzz/seeds/hook_output"], run: user_files::hook_output },
    FuzzTarget {
        name: "hook_settings",
        seeds: &["fuzz/seeds/hook_settings"],
        run: user_files::hook_settings,
    },
    FuzzTarget { name: "config", seeds: &["fuzz/seeds/config"], run: user_files::config },
    FuzzTarget { name: "import", seeds: &["fuzz/seeds/import"], run: user_files::import },
    FuzzTarget { name: "command_line", seeds: &["fuzz/seeds/command_line"], run: tools::command_line },
    FuzzTarget { name: "patch", seeds: &["fuzz/seeds/patch"], run: tools::patch },
    FuzzTarget { name: "journal", seeds: &["tests/golden", "tests/golden/journals"], run: journal::read },
    FuzzTarget { name: "compact", seeds: &["fuzz/seeds/compact"], run: conversation::compact },
];

/// Returns the target with this name.
///
/// # Panics
///
/// If no target has this name.
pub fn target(name: &str) -> &'static FuzzTarget {
    ALL.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("there is no target {name:?}"))
}
