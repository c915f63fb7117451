//! The functions of the C library under PMIx's own names, for tools that are compiled against the
//! system's `pmix.h`. Such a tool works unchanged with an engine of iof if it is linked with
//! `libiof-pmix.so` instead of `libpmix.so`, or if `libiof-pmix.so` is preloaded.
//!
//! Structures and constants are identical, so each function forwards to the function of the same
//! name with the prefix `iof_`. The other functions of PMIx's tool API exist, too, and report that
//! they are not supported. `include/iof_pmix.h` lists both kinds.
#![allow(non_snake_case, reason = "the names are PMIx's")]
#![allow(clippy::missing_safety_doc, reason = "iof.h documents the contracts")]

use std::ffi::{c_char, c_int, c_void};

use iof_c::*;

/// Defines functions that forward to those of the C library: `PMIx_name = iof_name(types)`.
macro_rules! forward {
    ($($name:ident = $to:ident($($type:ty),*) $(-> $result:ty)?;)+) => {
        $(forward!(@define $name = $to() [$($type,)*] a b c d e f g h => $($result)?);)+
    };
    // The next argument gets the next name.
    (
        @define $name:ident = $to:ident($($arg:ident: $type:ty,)*) [$next:ty, $($rest:ty,)*]
        $new:ident $($names:ident)* => $($result:ty)?
    ) => {
        forward!(@define $name = $to($($arg: $type,)* $new: $next,) [$($rest,)*] $($names)* => $($result)?);
    };
    (
        @define $name:ident = $to:ident($($arg:ident: $type:ty,)*) []
        $($names:ident)* => $($result:ty)?
    ) => {
        #[doc = concat!("Forwards to [`", stringify!($to), "`].")]
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some of the functions are safe")]
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps the contract, which is that of the function called.
            unsafe { $to($($arg),*) }
        }
    };
}

forward! {
    PMIx_tool_init = iof_tool_init(*mut iof_proc_t, *mut iof_info_t, usize) -> iof_status_t;
    PMIx_tool_finalize = iof_tool_finalize() -> iof_status_t;
    PMIx_Initialized = iof_Initialized() -> c_int;
    PMIx_IOF_pull = iof_IOF_pull(*const iof_proc_t, usize, *const iof_info_t, usize, iof_iof_channel_t,
        iof_iof_cbfunc_t, iof_hdlr_reg_cbfunc_t, *mut c_void) -> iof_status_t;
    PMIx_IOF_deregister = iof_IOF_deregister(usize, *const iof_info_t, usize, iof_op_cbfunc_t,
        *mut c_void) -> iof_status_t;
    PMIx_IOF_push = iof_IOF_push(*const iof_proc_t, usize, *mut iof_byte_object_t, *const iof_info_t, usize,
        iof_op_cbfunc_t, *mut c_void) -> iof_status_t;
    PMIx_Query_info = iof_Query_info(*mut iof_query_t, usize, *mut *mut iof_info_t,
        *mut usize) -> iof_status_t;
    PMIx_Query_info_nb = iof_Query_info_nb(*mut iof_query_t, usize, iof_info_cbfunc_t,
        *mut c_void) -> iof_status_t;
    PMIx_Log = iof_Log(*const iof_info_t, usize, *const iof_info_t, usize) -> iof_status_t;
    PMIx_Log_nb = iof_Log_nb(*const iof_info_t, usize, *const iof_info_t, usize, iof_op_cbfunc_t,
        *mut c_void) -> iof_status_t;
    PMIx_Spawn = iof_Spawn(*const iof_info_t, usize, *const iof_app_t, usize, *mut c_char) -> iof_status_t;
    PMIx_Spawn_nb = iof_Spawn_nb(*const iof_info_t, usize, *const iof_app_t, usize, iof_spawn_cbfunc_t,
        *mut c_void) -> iof_status_t;
    PMIx_Register_event_handler = iof_Register_event_handler(*mut iof_status_t, usize, *mut iof_info_t, usize,
        iof_notification_fn_t, iof_hdlr_reg_cbfunc_t, *mut c_void) -> iof_status_t;
    PMIx_Deregister_event_handler = iof_Deregister_event_handler(usize, iof_op_cbfunc_t,
        *mut c_void) -> iof_status_t;
    PMIx_Progress = iof_Progress();
    PMIx_Get_version = iof_Get_version() -> *const c_char;
    PMIx_Error_string = iof_Error_string(iof_status_t) -> *const c_char;
    PMIx_IOF_channel_string = iof_IOF_channel_string(iof_iof_channel_t) -> *const c_char;
    PMIx_Proc_state_string = iof_Proc_state_string(iof_proc_state_t) -> *const c_char;
    PMIx_Data_type_string = iof_Data_type_string(iof_data_type_t) -> *const c_char;
    PMIx_Value_load = iof_Value_load(*mut iof_value_t, *const c_void, iof_data_type_t) -> iof_status_t;
    PMIx_Value_unload = iof_Value_unload(*mut iof_value_t, *mut *mut c_void, *mut usize) -> iof_status_t;
    PMIx_Value_destruct = iof_Value_destruct(*mut iof_value_t);
    PMIx_Value_xfer = iof_Value_xfer(*mut iof_value_t, *const iof_value_t) -> iof_status_t;
    PMIx_Data_array_destruct = iof_Data_array_destruct(*mut iof_data_array_t);
    PMIx_Info_load = iof_Info_load(*mut iof_info_t, *const c_char, *const c_void,
        iof_data_type_t) -> iof_status_t;
    PMIx_Info_xfer = iof_Info_xfer(*mut iof_info_t, *const iof_info_t) -> iof_status_t;
    PMIx_Info_list_start = iof_Info_list_start() -> *mut c_void;
    PMIx_Info_list_add = iof_Info_list_add(*mut c_void, *const c_char, *const c_void,
        iof_data_type_t) -> iof_status_t;
    PMIx_Info_list_xfer = iof_Info_list_xfer(*mut c_void, *const iof_info_t) -> iof_status_t;
    PMIx_Info_list_convert = iof_Info_list_convert(*mut c_void, *mut iof_data_array_t) -> iof_status_t;
    PMIx_Info_list_release = iof_Info_list_release(*mut c_void);
    PMIx_Info_list_insert = iof_Info_list_xfer(*mut c_void, *mut iof_info_t) -> iof_status_t;
    PMIx_Scope_string = iof_Scope_string(u8) -> *const c_char;
    PMIx_Persistence_string = iof_Persistence_string(u8) -> *const c_char;
    PMIx_Data_range_string = iof_Data_range_string(u8) -> *const c_char;
    PMIx_Info_directives_string = iof_Info_directives_string(iof_info_directives_t) -> *mut c_char;
    PMIx_Value_string = iof_Value_string(*const iof_value_t) -> *mut c_char;
    PMIx_Info_string = iof_Info_string(*const iof_info_t) -> *mut c_char;
    PMIx_Get_attribute_string = iof_Get_attribute_string(*const c_char) -> *const c_char;
    PMIx_Get_attribute_name = iof_Get_attribute_name(*const c_char) -> *const c_char;
    PMIx_tool_get_servers = iof_tool_get_servers(*mut *mut iof_proc_t, *mut usize) -> iof_status_t;
    PMIx_tool_set_server = iof_tool_set_server(*const iof_proc_t, *const iof_info_t, usize) -> iof_status_t;
    PMIx_tool_attach_to_server = iof_tool_attach_to_server(*mut iof_proc_t, *mut iof_proc_t, *mut iof_info_t,
        usize) -> iof_status_t;
    PMIx_tool_disconnect = iof_tool_disconnect(*const iof_proc_t) -> iof_status_t;
}

/// Forwards to [`iof_tool_attach_to_server`], whose form it has without the name of the server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn PMIx_tool_connect_to_server(
    proc: *mut iof_proc_t,
    info: *mut iof_info_t,
    ninfo: usize,
) -> iof_status_t {
    // SAFETY: the caller keeps the contract, which is that of the function called.
    unsafe { iof_tool_attach_to_server(proc, std::ptr::null_mut(), info, ninfo) }
}

mod client;
mod unsupported;
