//! Sets the soname, by which the dynamic loader finds the library, and keeps it in memory.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libiof-pmix.so.0");
    // See the build script of `iof-c`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
