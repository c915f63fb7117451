//! The native part of the package for Python, `iof._iof`: tools and launchers.
//!
//! | module | content |
//! |---|---|
//! | `error` | the exception `iof.Error`, and the errors that become it |
//! | `owned` | values that a child process after fork(2) must not use |
//! | `wait` | waits that signals end, without the GIL |
//! | `items` | what a reader returns: lines, gaps, ends |
//! | `reader` | one registration on a connection of its own, as lines or as batches |
//! | `batch` | bytes that stay in the shared memory while Python uses them; unsafe |
//! | `descriptor` | duplicates of descriptors of Python; unsafe |
//! | `arguments` | the arguments that a registration is made of |
//! | `tool` | requests to an engine: queries, pushes, signals |
//! | `engine`, `job` | an engine in this process, and its jobs |
//!
//! The package's Python part checks the types of arguments and defines the names that users see.

mod arguments;
mod batch;
mod descriptor;
mod engine;
mod error;
mod items;
mod job;
mod owned;
mod reader;
mod tool;
mod wait;

/// The native module.
#[pyo3::pymodule]
mod _iof {
    use std::sync::OnceLock;

    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;
    use pyo3::types::IntoPyDict;

    use crate::owned::note_process;

    /// The address of the module `sys` of the interpreter that has imported this module.
    static INTERPRETER: OnceLock<usize> = OnceLock::new();

    /// Refuses a second interpreter in this process: classes and cached objects belong to one. Notes the
    /// process, and each child.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let sys = module.py().import("sys")?.as_ptr().addr();
        if *INTERPRETER.get_or_init(|| sys) != sys {
            return Err(PyImportError::new_err(
                "iof supports one interpreter of a process, no subinterpreters",
            ));
        }
        note_process();
        let hooks =
            [("after_in_child", wrap_pyfunction!(note_process, module)?)].into_py_dict(module.py())?;
        module.py().import("os")?.getattr("register_at_fork")?.call((), Some(&hooks))?;
        Ok(())
    }

    #[pymodule_export]
    use crate::{
        batch::PyBatch,
        engine::PyEngine,
        error::Error,
        items::PyLine,
        job::PyJob,
        reader::PyReader,
        tool::{PyTool, engines, query_keys},
    };

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name of the attribute")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
