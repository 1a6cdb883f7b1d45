//! The command `millstream`: everything is in the library, `cli` is the way in.

fn main() -> std::process::ExitCode {
    millstream::cli::main()
}
