//! The `epitome` binary: hands its arguments to the command line and exits with its code.

fn main() {
    std::process::exit(epitome::cli::main());
}
