//! The functions of PMIx's tool API that this library does not support. They exist, so that no
//! symbol is missing. Like PMIx's library, those that need a server return [`IOF_ERR_INIT`] in a
//! process that has not initialized the library, and [`IOF_ERR_UNREACH`] in one without a
//! connection. `iof_last_error` returns the reason why they are not supported.
//!
//! They take no arguments. The C calling conventions of all platforms of Linux allow a caller to
//! pass more arguments than a function takes.

use std::ffi::{c_char, c_int};

use iof_c::{
    IOF_ERR_INIT, IOF_ERR_NOT_SUPPORTED, IOF_ERR_UNREACH, fail, iof_Initialized, iof_server_uri,
    iof_status_t, iof_tool_is_connected,
};

macro_rules! not_supported {
    ($status:expr, $reason:literal: $($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> iof_status_t {
                fail($status, $reason)
            }
        )+
    };
}

/// Returns the status of a function that needs a server.
fn of_server() -> iof_status_t {
    match iof_Initialized() {
        0 => IOF_ERR_INIT,
        _ if iof_tool_is_connected() || !iof_server_uri().is_null() => IOF_ERR_NOT_SUPPORTED,
        _ => IOF_ERR_UNREACH,
    }
}

not_supported! {
    of_server(), "ranks use it, and an engine keeps no data of processes, and has no collective operations":
    PMIx_Connect
    PMIx_Connect_nb
    PMIx_Disconnect
    PMIx_Disconnect_nb
    PMIx_Group_construct
    PMIx_Group_construct_nb
    PMIx_Group_destruct
    PMIx_Group_destruct_nb
    PMIx_Group_invite
    PMIx_Group_invite_nb
    PMIx_Group_join
    PMIx_Group_join_nb
    PMIx_Group_leave
    PMIx_Group_leave_nb
    PMIx_Lookup
    PMIx_Lookup_nb
    PMIx_Publish
    PMIx_Publish_nb
    PMIx_Resolve_nodes
    PMIx_Resolve_peers
    PMIx_Store_internal
    PMIx_Unpublish
    PMIx_Unpublish_nb
}

not_supported! {
    of_server(), "only launchers start and control processes":
    PMIx_Abort
    PMIx_Allocation_request
    PMIx_Allocation_request_nb
    PMIx_Job_control
    PMIx_Job_control_nb
    PMIx_Process_monitor
    PMIx_Process_monitor_nb
    PMIx_Spawn
    PMIx_Spawn_nb
}

not_supported! {
    of_server(), "the engine alone has events, and does not pass on those of tools":
    PMIx_Notify_event
}

not_supported! {
    of_server(), "the engine identifies tools by what the kernel reports":
    PMIx_Get_credential
    PMIx_Get_credential_nb
    PMIx_Validate_credential
    PMIx_Validate_credential_nb
}

not_supported! {
    IOF_ERR_NOT_SUPPORTED, "the library has no packed data":
    PMIx_Data_copy
    PMIx_Data_copy_payload
    PMIx_Data_embed
    PMIx_Data_load
    PMIx_Data_pack
    PMIx_Data_print
    PMIx_Data_unload
    PMIx_Data_unpack
}

not_supported! {
    of_server(), "the library has no fabrics and topologies":
    PMIx_Compute_distances
    PMIx_Compute_distances_nb
    PMIx_Fabric_deregister
    PMIx_Fabric_deregister_nb
    PMIx_Fabric_register
    PMIx_Fabric_register_nb
    PMIx_Fabric_update
    PMIx_Fabric_update_nb
    PMIx_Get_cpuset
    PMIx_Get_relative_locality
    PMIx_Load_topology
    PMIx_Parse_cpuset_string
}

macro_rules! not_supported_string {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> *const c_char {
                c"NOT SUPPORTED".as_ptr()
            }
        )+
    };
}

// The caller does not free these strings.
not_supported_string! {
    PMIx_Alloc_directive_string
    PMIx_Device_type_string
    PMIx_Job_state_string
    PMIx_Link_state_string
    PMIx_Value_comparison_string
}

/// Does nothing: no function of this library constructs a topology.
#[unsafe(no_mangle)]
extern "C" fn PMIx_Topology_destruct() {}

/// Does nothing: no function of this library constructs a set of CPUs.
#[unsafe(no_mangle)]
extern "C" fn PMIx_Cpuset_destruct() {}

/// Returns `false`: the data was not compressed.
#[unsafe(no_mangle)]
extern "C" fn PMIx_Data_compress() -> bool {
    false
}

/// Returns `false`: the data was not decompressed.
#[unsafe(no_mangle)]
extern "C" fn PMIx_Data_decompress() -> bool {
    false
}

/// Returns `PMIX_VALUE_COMPARISON_NOT_AVAIL`.
#[unsafe(no_mangle)]
extern "C" fn PMIx_Value_compare() -> c_int {
    5
}
