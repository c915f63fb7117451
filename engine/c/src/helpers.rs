//! The functions with which C programs fill, copy and free values, infos and processes. They need
//! no initialization.

use std::ffi::{c_char, c_void};
use std::ptr;

use crate::constants::*;
use crate::guard::{Outcome, guard, guard_or};
use crate::types::{
    iof_data_array_t, iof_data_type_t, iof_info_t, iof_proc_t, iof_rank_t, iof_status_t, iof_value_t,
};
use crate::{memory, read, value};

/// Fills a process with a copy of the name ns and with the rank. Errors: IOF_ERR_BAD_PARAM if the
/// name is longer than IOF_MAX_NSLEN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Load_procid(
    p: *mut iof_proc_t,
    ns: *const c_char,
    rk: iof_rank_t,
) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (place, name) = unsafe { (read::place(p)?, read::text(ns, IOF_MAX_NSLEN)?) };
        *place = iof_proc_t { nspace: memory::nspace(name), rank: rk };
        Ok(IOF_SUCCESS)
    })
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
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(val)?;
            *place = value::load(data, r#type)?;
        }
        Ok(IOF_SUCCESS)
    })
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
            if val.r#type == IOF_POINTER {
                // SAFETY: the type specifies this field.
                *data = unsafe { val.data.ptr };
            } else if data.is_null() {
                return Err(IOF_ERR_BAD_PARAM);
            } else {
                // SAFETY: all fields begin at the start of the union; by the contract in the header
                // `*data` has room for one of the type.
                unsafe { ptr::copy_nonoverlapping((&raw const val.data).cast::<u8>(), data.cast(), plain) };
            }
            *size = plain;
            return Ok(IOF_SUCCESS);
        }
        // SAFETY: the contract in the header; the type specifies the field, and C owns the copy.
        unsafe {
            if val.r#type == IOF_UNDEF {
                return Err(IOF_ERR_BAD_PARAM);
            }
            let copy = value::copy(val, 0)?;
            (*data, *size) = match copy.r#type {
                IOF_STRING if copy.data.string.is_null() => return Err(IOF_ERR_NOT_FOUND),
                IOF_STRING => (copy.data.string.cast(), libc::strlen(copy.data.string).saturating_add(1)),
                IOF_BYTE_OBJECT => (copy.data.bo.bytes.cast(), copy.data.bo.size),
                IOF_PROC => (copy.data.proc.cast(), size_of::<iof_proc_t>()),
                IOF_PROC_NSPACE => (copy.data.nspace.cast(), IOF_MAX_NSLEN.saturating_add(1)),
                IOF_DATA_ARRAY => (copy.data.darray.cast(), size_of::<iof_data_array_t>()),
                IOF_PROC_INFO => (copy.data.pinfo.cast(), size_of::<crate::types::iof_proc_info_t>()),
                _ => {
                    let mut copy = copy;
                    value::destroy(&mut copy, 0);
                    return Err(IOF_ERR_UNKNOWN_DATA_TYPE);
                }
            };
        }
        Ok(IOF_SUCCESS)
    })
}

/// Frees what a value points to, and sets its type to IOF_UNDEF. Does not free the value itself.
/// NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_destruct(val: *mut iof_value_t) {
    guard_or((), || {
        // SAFETY: the contract in the header.
        if let Ok(val) = unsafe { read::place(val) } {
            // SAFETY: the contract in the header.
            unsafe { value::destroy(val, 0) };
        }
    });
}

/// Copies a value and all that it points to into dest, to be freed by iof_Value_destruct. The
/// previous contents of dest are not freed. Errors: IOF_ERR_UNKNOWN_DATA_TYPE if the type is not
/// supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Value_xfer(dest: *mut iof_value_t, src: *const iof_value_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(dest)?;
            *place = value::copy(read::one(src)?, 0)?;
        }
        Ok(IOF_SUCCESS)
    })
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
    guard_or((), || {
        // SAFETY: the contract in the header.
        if let Ok(place) = unsafe { read::place(d) } {
            *place = value::empty_array(n, r#type);
        }
    });
}

/// Frees the elements of an array and all that they point to, and makes the array empty. Does not
/// free the structure itself. NULL has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Data_array_destruct(d: *mut iof_data_array_t) {
    guard_or((), || {
        // SAFETY: the contract in the header.
        if let Ok(array) = unsafe { read::place(d) } {
            // SAFETY: the contract in the header.
            unsafe { value::destroy_array(array, 0) };
        }
    });
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
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(info)?;
            place.write_info(key, value::load(data, r#type)?)
        }
    })
}

impl iof_info_t {
    /// Fills the info. Frees `value` on an error.
    ///
    /// # Safety
    /// The contract of [`read`], for `key`.
    unsafe fn write_info(&mut self, key: *const c_char, mut value: iof_value_t) -> Outcome<iof_status_t> {
        // SAFETY: the caller's promise.
        match unsafe { read::text(key, IOF_MAX_KEYLEN) } {
            Ok(key) => {
                *self = iof_info_t { key: memory::key(key), flags: 0, value };
                Ok(IOF_SUCCESS)
            }
            Err(status) => {
                // SAFETY: the library has created it, and nothing else refers to it.
                unsafe { value::destroy(&mut value, 0) };
                Err(status)
            }
        }
    }
}

/// Marks an info as required: the request fails if the info is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_required(info: *mut iof_info_t) {
    guard_or((), || {
        // SAFETY: the contract in the header.
        if let Ok(info) = unsafe { read::place(info) } {
            info.flags |= IOF_INFO_REQD;
        }
    });
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
    guard(|| {
        // SAFETY: the contract in the header.
        unsafe {
            let place = read::place(dest)?;
            *place = copied(read::one(src)?)?;
        }
        Ok(IOF_SUCCESS)
    })
}

/// Returns a copy of an info.
///
/// # Safety
/// The contract of [`value`].
unsafe fn copied(from: &iof_info_t) -> Outcome<iof_info_t> {
    read::key(from)?;
    // SAFETY: the caller's promise.
    let value = unsafe { value::copy(&from.value, 0) }?;
    Ok(iof_info_t { flags: from.flags & !IOF_INFO_PERSISTENT, value, ..*from })
}

/// A growable list of infos. [`list`] checks the mark before it uses anything else.
struct List {
    mark: u64,
    infos: Vec<iof_info_t>,
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
        return Err(IOF_ERR_BAD_PARAM);
    }
    // SAFETY: the mark shows that it is a list.
    Ok(unsafe { &mut *list })
}

/// Creates a list of infos, to be freed by iof_Info_list_release. Only one thread at a time may use
/// a list. Returns NULL on an internal error.
#[unsafe(no_mangle)]
pub extern "C" fn iof_Info_list_start() -> *mut c_void {
    guard_or(ptr::null_mut(), || Box::into_raw(Box::new(List { mark: MARK, infos: Vec::new() })).cast())
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
            let mut info = iof_info_t { key: [0; 512], flags: 0, value: value::NOTHING };
            info.write_info(key, value::load(value, r#type)?)?;
            list.push(info)
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
    fn push(&mut self, mut info: iof_info_t) -> Outcome<iof_status_t> {
        if self.infos.len() >= MAX_LISTED {
            // SAFETY: the info is a copy that the list would have owned.
            unsafe { value::destroy(&mut info.value, 0) };
            return Err(IOF_ERR_OUT_OF_RESOURCE);
        }
        self.infos.push(info);
        Ok(IOF_SUCCESS)
    }
}

/// Stores an array with copies of the infos of a list in *par, to be freed by
/// iof_Data_array_destruct. The list is unchanged. Errors: IOF_ERR_EMPTY if the list is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iof_Info_list_convert(ptr: *mut c_void, par: *mut iof_data_array_t) -> iof_status_t {
    guard(|| {
        // SAFETY: the contract in the header.
        let (list, place) = unsafe { (list(ptr)?, read::place(par)?) };
        if list.infos.is_empty() {
            return Err(IOF_ERR_EMPTY);
        }
        let array = list.infos.as_mut_ptr().cast();
        let all = iof_data_array_t { r#type: IOF_INFO, size: list.infos.len(), array };
        // SAFETY: it is an array of infos.
        *place = unsafe { value::copy_array(&all, 0) }?;
        Ok(IOF_SUCCESS)
    })
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
        let mut list = unsafe { Box::from_raw(&raw mut *list) };
        for info in &mut list.infos {
            // SAFETY: the list owns its infos.
            unsafe { value::destroy(&mut info.value, 0) };
        }
    });
}
