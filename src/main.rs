//! The `epitome` binary: hands its arguments to the command line and exits with its code.

fn main() {
    epitome_platform::memory_trim::share_heaps();
    std::process::exit(epitome::cli::main());
}
