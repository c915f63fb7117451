//! The package of the command `iof`. The library is empty: Cargo and maturin follow dependencies on libraries
//! only, and the source distribution for Python contains the command.
