//! Runs every fuzz target briefly: with its seeds, and with inputs generated from them by random changes.
//!
//! `EPITOME_INPUTS=100000 cargo test --release --test pure fuzz` generates more inputs, `EPITOME_SEED=17` different
//! ones. For long runs, use cargo-fuzz, which is guided by coverage: `fuzz/run TARGET`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use epitome_fuzz_targets::{ALL, FuzzTarget};

/// Inputs per target unless `EPITOME_INPUTS` is set.
const INPUTS: u64 = 300;

/// Larger inputs find little more and cost much more.
const INPUT_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of changes to one seed.
const CHANGES_MAX: usize = 6;

/// Tokens that parsers treat specially.
const TOKENS: [&str; 28] = [
    "\n",
    "\r\n",
    "\0",
    "\u{feff}",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "\\ud800",
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "---\n",
    "{{",
    "}}",
    "$(",
    "`",
    "'",
    "<<EOF\n",
    "é",
    "\u{202e}",
    "🙂",
    "data: ",
    "*** End Patch",
    "../",
];

#[test]
fn every_property_holds_for_mutated_seeds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let inputs = number("EPITOME_INPUTS").unwrap_or(INPUTS);
    let seed = number("EPITOME_SEED").unwrap_or(0);
    for target in ALL {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut rng = fastrand::Rng::with_seed(seed);
        for input in &seeds {
            check(target, input);
        }
        for _ in 0..inputs {
            check(target, &mutated(&seeds, &mut rng));
        }
    }
}

#[test]
fn every_target_can_be_run_by_cargo_fuzz() {
    let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("it is there");
    let programs = std::fs::read_dir(root().join("fuzz/fuzz_targets")).expect("it is there");
    let programs: BTreeSet<String> = programs
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned))
        .collect();
    assert_eq!(programs, ALL.iter().map(|target| target.name.to_owned()).collect());
    let script = std::fs::read_to_string(root().join("fuzz/run")).expect("it is there");
    for target in ALL {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
        let own = format!("fuzz/seeds/{}", target.name);
        let are_given = |seeds: &&str| **seeds == own || script.contains(*seeds);
        assert!(target.seeds.iter().all(are_given), "the seeds of {}", target.name);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn seeds(target: &FuzzTarget) -> Vec<Vec<u8>> {
    let directories = target.seeds.iter().map(|directory| root().join(directory));
    let files = directories.flat_map(|directory| std::fs::read_dir(directory).expect("it is there"));
    let mut paths: Vec<_> = files.map(|file| file.expect("it can be listed").path()).collect();
    paths.sort();
    paths.retain(|path| path.is_file());
    let seeds = paths.into_iter().map(|path| std::fs::read(path).expect("it can be read"));
    seeds
        .map(|mut seed| {
            seed.truncate(INPUT_BYTES_MAX);
            seed
        })
        .collect()
}

/// A seed with some bytes changed, removed, repeated, or taken from another seed.
fn mutated(seeds: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut input = rng.choice(seeds).expect("there are seeds").clone();
    for _ in 0..rng.usize(1..=CHANGES_MAX) {
        let at = rng.usize(..=input.len());
        let end = (at + rng.usize(..64)).min(input.len());
        match rng.u8(..6) {
            0 if at < input.len() => input[at] ^= 1 << rng.u32(..8),
            1 => drop(input.drain(at..end)),
            2 => input.truncate(at),
            3 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            4 => {
                let other = rng.choice(seeds).expect("there are seeds");
                let from = rng.usize(..=other.len());
                input.splice(at..end, other[from..].iter().take(256).copied());
            }
            _ => {
                let token = rng.choice(TOKENS).expect("there are tokens");
                input.splice(at..at, token.bytes());
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

/// Runs a target. If it panics, shrinks the input and runs the target again with the shortest one that still panics.
fn check(target: &FuzzTarget, input: &[u8]) {
    let fails = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    if !fails(input) {
        return;
    }
    let mut shortest = input.to_vec();
    let mut part = shortest.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < shortest.len() {
            let mut shorter = shortest.clone();
            shorter.drain(at..(at + part).min(shortest.len()));
            if fails(&shorter) {
                shortest = shorter;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    println!("{} fails with b\"{}\"", target.name, shortest.escape_ascii());
    (target.run)(&shortest);
    unreachable!("it failed a moment ago");
}
