//! The functions with which C programs fill, copy and free values, infos and processes. They need
//! no initialization.

use std::ffi::{c_char, c_void};
use std::ptr;

use iof_proto::Status;

use crate::ffi::constants::*;
use crate::ffi::guard::{Outcome, guard, guard_or};
use crate::ffi::owned::OwnedInfos;
use crate::ffi::types::{
    IOF_MAX_KEYLEN, IOF_MAX_NSLEN, iof_data_array_t, iof_data_type_t, iof_info_t, iof_proc_t, iof_rank_t,
    iof_status_t, iof_value_t,
};
use crate::ffi::{memory, read, value};

/// Stores what `value` returns.
///
/// # Safety
/// The contract of [`read`].
unsafe fn fill<T>(place: *mut T, value: impl FnOnce() -> Outcome<T>) -> iof_status_t {
    guard(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { read::place(place) }?;
        *place = value()?;
        Ok(())
    })
}

/// Changes what `place` points to, if anything.
///
/// # Safety
/// The contract of [`read`].
unsafe fn edit<T>(place: *mut T, change: impl FnOnce(&mut T)) {
    // SAFETY: the caller's promise.
    guard_or((), || unsafe { read::place(place) }.map_or((), change));
}

/// Fills a process with a copy of the name ns and with the rank. Errors: IOF_ERR_BAD_PARAM if the
/// name is longer than IOF_MAX_NSLEN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Load_procid(
    p: *mut iof_proc_t,
    ns: *const c_char,
    rk: iof_rank_t,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe {
        fill(p, || Ok(iof_proc_t { nspace: memory::characters(read::text(ns, IOF_MAX_NSLEN)?), rank: rk }))
    }
}

/// Fills a value with a copy of data, to be freed by iof_Value_destruct. data points to data of the
/// type; for IOF_STRING it is the text itself, for IOF_POINTER the pointer itself, and for IOF_BOOL
/// NULL means true. The previous contents of val, which may be uninitialized, are not freed.
/// Errors: IOF_ERR_UNKNOWN_DATA_TYPE if the type is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_load(
    val: *mut iof_value_t,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe { fill(val, || value::load(data, r#type)) }
}

/// Copies the contents of a value, and stores their size in bytes in *sz, with the terminator of a
/// text. If the type is a number, a bool or a struct timeval, the contents are copied to the memory
/// that *data points to. For IOF_POINTER *data receives the pointer itself. For other types *data
/// receives a new copy, which the program frees with free(3), with all that it points to. Errors:
/// IOF_ERR_BAD_PARAM if *data is NULL for a type of the first kind; IOF_ERR_NOT_FOUND if a text is
/// NULL; IOF_ERR_UNKNOWN_DATA_TYPE if the type is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_unload(
    val: *mut iof_value_t,
    data: *mut *mut c_void,
    sz: *mut usize,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (val, data, size) = unsafe { (read::one(val)?, read::place(data)?, read::place(sz)?) };
        if let Some(plain) = value::plain_size(val.r#type) {
            if val.r#type == PMIX_POINTER {
                // SAFETY: the type specifies this field.
                *data = unsafe { val.data.ptr };
            } else if data.is_null() {
                return Err(Status::ERR_BAD_PARAM);
            } else {
                // SAFETY: all fields begin at the start of the union; by the contract in the header
                // `*data` has room for one of the type.
                unsafe { ptr::copy_nonoverlapping((&raw const val.data).cast::<u8>(), data.cast(), plain) };
            }
            *size = plain;
            return Ok(());
        }
        // SAFETY: the contract in the header; the type specifies the field, and C owns the copy.
        unsafe {
            if val.r#type == PMIX_UNDEF {
                return Err(Status::ERR_BAD_PARAM);
            }
            let copy = value::copy(val, 0)?;
            (*data, *size) = match copy.r#type {
                PMIX_STRING if copy.data.string.is_null() => return Err(Status::ERR_NOT_FOUND),
                PMIX_STRING => (copy.data.string.cast(), libc::strlen(copy.data.string).saturating_add(1)),
                PMIX_BYTE_OBJECT => (copy.data.bo.bytes.cast(), copy.data.bo.size),
                PMIX_PROC => (copy.data.proc.cast(), size_of::<iof_proc_t>()),
                PMIX_PROC_NSPACE => (copy.data.nspace.cast(), IOF_MAX_NSLEN.saturating_add(1)),
                PMIX_DATA_ARRAY => (copy.data.darray.cast(), size_of::<iof_data_array_t>()),
                PMIX_PROC_INFO => (copy.data.pinfo.cast(), size_of::<crate::ffi::types::iof_proc_info_t>()),
                _ => {
                    let mut copy = copy;
                    value::destroy(&mut copy, 0);
                    return Err(Status::ERR_UNKNOWN_DATA_TYPE);
                }
            };
        }
        Ok(())
    })
}

/// Frees what a value points to, and sets its type to IOF_UNDEF. Does not free the value itself.
/// NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_destruct(val: *mut iof_value_t) {
    // SAFETY: the contract in the header.
    unsafe { edit(val, |val| value::destroy(val, 0)) };
}

/// Copies a value and all that it points to into dest, to be freed by iof_Value_destruct. The
/// previous contents of dest are not freed. Errors: IOF_ERR_UNKNOWN_DATA_TYPE if the type is not
/// supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_xfer(dest: *mut iof_value_t, src: *const iof_value_t) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe { fill(dest, || value::copy(read::one(src)?, 0)) }
}

/// Makes a structure an array of n elements of a type, which are all zero, to be freed by
/// iof_Data_array_destruct. What the structure held is not freed. If memory is exhausted, the type
/// is unknown or n is 0, the array is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Data_array_construct(
    d: *mut iof_data_array_t,
    n: usize,
    r#type: iof_data_type_t,
) {
    // SAFETY: the contract in the header.
    unsafe { edit(d, |array| *array = value::empty_array(n, r#type)) };
}

/// Frees the elements of an array and all that they point to, and makes the array empty. Does not
/// free the structure itself. NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Data_array_destruct(d: *mut iof_data_array_t) {
    // SAFETY: the contract in the header.
    unsafe { edit(d, |array| value::destroy_array(array, 0)) };
}

/// Fills an info with copies of the key and of data, as iof_Value_load does. The info is optional
/// (see iof_Info_required). Its value is to be freed by iof_Value_destruct. The previous contents
/// of the info, which may be uninitialized, are not freed. Errors: those of iof_Value_load, and
/// IOF_ERR_BAD_PARAM if the key is longer than IOF_MAX_KEYLEN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_load(
    info: *mut iof_info_t,
    key: *const c_char,
    data: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe { fill(info, || loaded(key, data, r#type)) }
}

/// Returns an info with copies of a key and of data.
///
/// # Safety
/// The contracts of [`read`] and [`value::load`].
unsafe fn loaded(key: *const c_char, data: *const c_void, kind: iof_data_type_t) -> Outcome<iof_info_t> {
    // SAFETY: the caller's promise; the library has created the value, and nothing else refers to it.
    unsafe {
        let mut value = value::load(data, kind)?;
        let key = read::text(key, IOF_MAX_KEYLEN).inspect_err(|_| value::destroy(&mut value, 0))?;
        Ok(iof_info_t { key: memory::characters(key), flags: 0, value })
    }
}

/// Marks an info as required: the request fails if the info is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_required(info: *mut iof_info_t) {
    // SAFETY: the contract in the header.
    unsafe { edit(info, |info| info.flags |= PMIX_INFO_REQD) };
}

/// Frees the values of an array of infos, and the array itself. The array comes from the library,
/// from malloc(3) or calloc(3), or from PMIX_INFO_CREATE. NULL has no effect. An info that is a
/// variable is not freed by this function, but its value by iof_Value_destruct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_free(info: *mut iof_info_t, ninfo: usize) {
    // SAFETY: the contract in the header.
    guard_or((), || unsafe { value::free_infos(info, ninfo) });
}

/// Copies an info and all that its value points to into dest, whose value is to be freed by
/// iof_Value_destruct. The previous contents of dest are not freed. Errors:
/// IOF_ERR_UNKNOWN_DATA_TYPE if the type is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_xfer(dest: *mut iof_info_t, src: *const iof_info_t) -> iof_status_t {
    // SAFETY: the contract in the header.
    unsafe { fill(dest, || copied(read::one(src)?)) }
}

/// Returns a copy of an info.
///
/// # Safety
/// The contract of [`value`].
unsafe fn copied(from: &iof_info_t) -> Outcome<iof_info_t> {
    read::key(from)?;
    // SAFETY: the caller's promise.
    let value = unsafe { value::copy(&from.value, 0) }?;
    Ok(iof_info_t { flags: from.flags & !PMIX_INFO_PERSISTENT, value, ..*from })
}

/// A growable list of infos. [`list`] checks the mark before it uses anything else.
struct List {
    mark: u64,
    infos: OwnedInfos,
}

/// The mark of a list that is not released: "iof_list" in ASCII.
const MARK: u64 = 0x696f_665f_6c69_7374;
/// The maximum number of infos in a list.
const MAX_LISTED: usize = 1 << 16;

/// Returns the list behind a handle.
///
/// # Safety
/// `list` was returned by [`iof_Info_list_start`] and is not released, or it points to at least
/// eight bytes of other memory.
unsafe fn list<'a>(list: *mut c_void) -> Outcome<&'a mut List> {
    let list: *mut List = list.cast();
    // SAFETY: the caller's promise.
    if list.is_null() || !list.is_aligned() || unsafe { (&raw const (*list).mark).read() } != MARK {
        return Err(Status::ERR_BAD_PARAM);
    }
    // SAFETY: the mark shows that it is a list.
    Ok(unsafe { &mut *list })
}

/// Creates a list of infos, to be freed by iof_Info_list_release. Only one thread at a time may use
/// a list. Returns NULL on an internal error.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Info_list_start() -> *mut c_void {
    guard_or(ptr::null_mut(), || {
        Box::into_raw(Box::new(List { mark: MARK, infos: OwnedInfos::default() })).cast()
    })
}

/// Adds an info with copies of the key and of value to a list, as iof_Info_load does. Errors: those
/// of iof_Info_load; IOF_ERR_OUT_OF_RESOURCE if the list has 65,536 infos.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_add(
    ptr: *mut c_void,
    key: *const c_char,
    value: *const c_void,
    r#type: iof_data_type_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let list = list(ptr)?;
            list.push(loaded(key, value, r#type)?)
        }
    })
}

/// Adds a copy of an info to a list. Errors: those of iof_Info_xfer; IOF_ERR_OUT_OF_RESOURCE if the
/// list has 65,536 infos.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_xfer(ptr: *mut c_void, info: *const iof_info_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe { list(ptr)?.push(copied(read::one(info)?)?) }
    })
}

impl List {
    fn push(&mut self, mut info: iof_info_t) -> Outcome<()> {
        if self.infos.0.len() >= MAX_LISTED {
            // SAFETY: the info is a copy that the list would have owned.
            unsafe { value::destroy(&mut info.value, 0) };
            return Err(Status::ERR_OUT_OF_RESOURCE);
        }
        self.infos.0.push(info);
        Ok(())
    }
}

/// Stores an array with copies of the infos of a list in *par, to be freed by
/// iof_Data_array_destruct. The list is unchanged. Errors: IOF_ERR_EMPTY if the list is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_convert(ptr: *mut c_void, par: *mut iof_data_array_t) -> iof_status_t {
    let convert = || {
        // SAFETY: the contract in the header.
        let infos = &mut unsafe { list(ptr) }?.infos.0;
        if infos.is_empty() {
            return Err(Status::ERR_EMPTY);
        }
        let all = iof_data_array_t { r#type: PMIX_INFO, size: infos.len(), array: infos.as_mut_ptr().cast() };
        // SAFETY: it is an array of infos.
        unsafe { value::copy_array(&all, 0) }
    };
    // SAFETY: the contract in the header.
    unsafe { fill(par, convert) }
}

/// Frees a list and all its infos. NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_release(ptr: *mut c_void) {
    guard_or((), || {
        // SAFETY: the contract in the header.
        let Ok(list) = (unsafe { list(ptr) }) else { return };
        list.mark = 0;
        // SAFETY: it was created by `iof_Info_list_start`, and its mark shows that it is not
        // released.
        drop(unsafe { Box::from_raw(&raw mut *list) });
    });
}
