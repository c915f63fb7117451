//! Sets the shared library's soname, which programs that are linked with it look for, and keeps it
//! in memory once it is loaded.

fn main() {
    // An argument for cdylibs only would also apply to the cdylib of `iof-pmix`, which depends on
    // this package. The tests are not shared objects, and the linker ignores the argument for them.
    println!("cargo:rustc-link-arg=-Wl,-soname,libiof.so.0");
    // dlclose(3) leaves the library in memory: its threads, and thread-local values with
    // destructors, may still use its code.
    println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
