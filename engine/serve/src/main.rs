//! The program `iof-serve`, see the library.

fn main() -> std::process::ExitCode {
    iof_serve::run()
}
