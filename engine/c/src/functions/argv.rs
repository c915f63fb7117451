//! Arrays of texts, such as arguments and environments.

use std::ffi::{c_char, c_int};
use std::ptr;

use iof_proto::Status;

use crate::ffi::guard::{Outcome, guard, guard_or, guard_pointer};
use crate::ffi::types::iof_status_t;
use crate::ffi::{memory, read};
use crate::functions::jobs::{MAX_ARG, MAX_ARGS};

/// Appends a copy of arg to an array of texts, which ends with NULL. *argv may be NULL, for an
/// empty array, and receives the new array, to be freed by iof_Argv_free. On an error the array is
/// unchanged. Errors: IOF_ERR_BAD_PARAM if arg is longer than 128 KiB; IOF_ERR_OUT_OF_RESOURCE if
/// the array has 65,536 texts; IOF_ERR_NOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_append_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(argv)?;
            *place = memory::append_text(*place, read::bytes(arg, MAX_ARG)?, MAX_ARGS)?;
        }
        Ok(())
    })
}

/// Returns the number of texts in an array that ends with NULL. A NULL array is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_count(argv: *mut *mut c_char) -> c_int {
    // SAFETY: the contract in the header.
    guard_or(0, || c_int::try_from(unsafe { memory::count_texts(argv) }).unwrap_or(c_int::MAX))
}

/// Frees an array of texts that ends with NULL, and its texts. NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_free(argv: *mut *mut c_char) {
    // SAFETY: the contract in the header.
    guard_or((), || unsafe { memory::free_texts(argv) });
}

/// Adds a copy of arg before the texts of an array, as iof_Argv_append_nosize does behind them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_prepend_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe {
        change(argv, arg, |texts, first| {
            texts.insert(0, first);
            Ok(())
        })
    }
}

/// The same as iof_Argv_append_nosize, without effect if the array has the text already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_append_unique_nosize(
    argv: *mut *mut *mut c_char,
    arg: *const c_char,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe {
        change(argv, arg, |texts, last| {
            if !texts.contains(&last) {
                texts.push(last);
            }
            Ok(())
        })
    }
}

/// Returns a copy of an array of texts, to be freed by iof_Argv_free. Returns NULL if the array is
/// NULL or empty, if it has more than 65,536 texts or one that is longer than 128 KiB, or if memory
/// is exhausted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_copy(argv: *mut *mut c_char) -> *mut *mut c_char {
    // SAFETY: the contract in the header.
    guard_pointer(|| Ok(made(&unsafe { texts(argv) }?)))
}

/// Returns the texts of an array, separated by delimiter, as one text, to be freed by free(3).
/// Returns NULL in the cases in which iof_Argv_copy does, except that an array that is NULL or
/// empty makes an empty text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_join(argv: *mut *mut c_char, delimiter: c_int) -> *mut c_char {
    guard_pointer(|| {
        // SAFETY: the contract in the header.
        let texts = unsafe { texts(argv) }?;
        Ok(memory::text(&texts.join(&byte(delimiter)?)))
    })
}

/// Returns the parts of a text between delimiters, without empty ones, as an array of texts, to be
/// freed by iof_Argv_free. Returns NULL if there are none, if the text is NULL or longer than 128
/// KiB, or if memory is exhausted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Argv_split(src: *const c_char, delimiter: c_int) -> *mut *mut c_char {
    guard_pointer(|| {
        // SAFETY: the contract in the header.
        let (text, delimiter) = (unsafe { read::bytes(src, MAX_ARG) }?, byte(delimiter)?);
        let parts = text.split(|byte| *byte == delimiter).filter(|part| !part.is_empty());
        Ok(made(&parts.map(<[u8]>::to_vec).collect::<Vec<_>>()))
    })
}

/// Sets a variable in an environment, an array of texts of the form NAME=VALUE, which is changed as
/// by iof_Argv_append_nosize. A value that is NULL is empty. Errors: those of
/// iof_Argv_append_nosize; IOF_ERR_EXISTS if the variable is set and overwrite is false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Setenv(
    name: *const c_char,
    value: *const c_char,
    overwrite: bool,
    env: *mut *mut *mut c_char,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe {
        change(env, name, |texts, mut start| {
            start.push(b'=');
            let value = if value.is_null() { &[] } else { read::bytes(value, MAX_ARG)? };
            let variable = [&start, value].concat();
            match texts.iter_mut().find(|text| text.starts_with(&start)) {
                Some(_) if !overwrite => return Err(Status::ERR_EXISTS),
                Some(text) => *text = variable,
                None => texts.push(variable),
            }
            Ok(())
        })
    }
}

fn byte(delimiter: c_int) -> Outcome<u8> {
    u8::try_from(delimiter).map_err(|_| Status::ERR_BAD_PARAM)
}

/// Reads an array of texts. NULL is empty.
///
/// # Safety
/// The contract of [`read`].
unsafe fn texts(argv: *mut *mut c_char) -> Outcome<Vec<Vec<u8>>> {
    // SAFETY: the caller's promise.
    unsafe { read::texts(argv, MAX_ARGS, MAX_ARG) }
}

/// Returns an array with these texts, or NULL if there are none or memory is exhausted.
fn made(texts: &[Vec<u8>]) -> *mut *mut c_char {
    if texts.is_empty() { ptr::null_mut() } else { memory::texts(texts) }
}

/// Replaces an array by one with the texts that `edit` leaves, which receives `text` as well. On an
/// error the array is unchanged.
///
/// # Safety
/// The contract of [`read`]; malloc has allocated the array and its texts.
unsafe fn change(
    argv: *mut *mut *mut c_char,
    text: *const c_char,
    edit: impl FnOnce(&mut Vec<Vec<u8>>, Vec<u8>) -> Outcome<()>,
) -> iof_status_t {
    // SAFETY: the caller's promise.
    guard(|| unsafe {
        let text = read::bytes(text, MAX_ARG)?.to_vec();
        let place = read::place(argv)?;
        let mut all = texts(*place)?;
        edit(&mut all, text)?;
        if all.len() > MAX_ARGS {
            return Err(Status::ERR_OUT_OF_RESOURCE);
        }
        let new = memory::checked(memory::texts(&all))?;
        memory::free_texts(std::mem::replace(place, new));
        Ok(())
    })
}
