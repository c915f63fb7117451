//! The types of values in C: the numbers of PMIx's `pmix_data_type_t`.

crate::numbers! {
    /// The types of values.
    DATA_TYPES: u16;

    /// Type: no value
    PMIX_UNDEF = 0;
    /// Type: bool
    PMIX_BOOL = 1;
    /// Type: uint8_t
    PMIX_BYTE = 2;
    /// Type: char *
    PMIX_STRING = 3;
    /// Type: size_t
    PMIX_SIZE = 4;
    /// Type: pid_t
    PMIX_PID = 5;
    /// Type: int
    PMIX_INT = 6;
    /// Type: int8_t
    PMIX_INT8 = 7;
    /// Type: int16_t
    PMIX_INT16 = 8;
    /// Type: int32_t
    PMIX_INT32 = 9;
    /// Type: int64_t
    PMIX_INT64 = 10;
    /// Type: unsigned int
    PMIX_UINT = 11;
    /// Type: uint8_t
    PMIX_UINT8 = 12;
    /// Type: uint16_t
    PMIX_UINT16 = 13;
    /// Type: uint32_t
    PMIX_UINT32 = 14;
    /// Type: uint64_t
    PMIX_UINT64 = 15;
    /// Type: float
    PMIX_FLOAT = 16;
    /// Type: double
    PMIX_DOUBLE = 17;
    /// Type: struct timeval
    PMIX_TIMEVAL = 18;
    /// Type: time_t
    PMIX_TIME = 19;
    /// Type: iof_status_t
    PMIX_STATUS = 20;
    /// Type: iof_value_t
    PMIX_VALUE = 21;
    /// Type: iof_proc_t
    PMIX_PROC = 22;
    /// Type: iof_info_t
    PMIX_INFO = 24;
    /// Type: iof_byte_object_t
    PMIX_BYTE_OBJECT = 27;
    /// Type: void *
    PMIX_POINTER = 31;
    /// Type: iof_proc_state_t
    PMIX_PROC_STATE = 37;
    /// Type: iof_proc_info_t
    PMIX_PROC_INFO = 38;
    /// Type: iof_data_array_t
    PMIX_DATA_ARRAY = 39;
    /// Type: iof_rank_t
    PMIX_PROC_RANK = 40;
    /// Type: iof_query_t
    PMIX_QUERY = 41;
    /// Type: iof_iof_channel_t
    PMIX_IOF_CHANNEL = 45;
    /// Type: iof_envar_t
    PMIX_ENVAR = 46;
    /// Type: iof_regattr_t
    PMIX_REGATTR = 48;
    /// Type: iof_nspace_t
    PMIX_PROC_NSPACE = 60;

    named:
        PMIX_APP = 23, PMIX_PDATA = 25, PMIX_KVAL = 28, PMIX_PERSIST = 30, PMIX_SCOPE = 32,
        PMIX_DATA_RANGE = 33, PMIX_COMMAND = 34, PMIX_INFO_DIRECTIVES = 35, PMIX_DATA_TYPE = 36,
        PMIX_COMPRESSED_STRING = 42, PMIX_ALLOC_DIRECTIVE = 43, PMIX_COORD = 47, PMIX_REGEX = 49,
        PMIX_JOB_STATE = 50, PMIX_LINK_STATE = 51, PMIX_PROC_CPUSET = 52, PMIX_GEOMETRY = 53,
        PMIX_DEVICE_DIST = 54, PMIX_ENDPOINT = 55, PMIX_TOPO = 56, PMIX_DEVTYPE = 57, PMIX_LOCTYPE = 58,
        PMIX_COMPRESSED_BYTE_OBJECT = 59, PMIX_PROC_STATS = 61, PMIX_DISK_STATS = 62, PMIX_NET_STATS = 63,
        PMIX_NODE_STATS = 64, PMIX_DATA_BUFFER = 65, PMIX_STOR_MEDIUM = 66, PMIX_STOR_ACCESS = 67,
        PMIX_STOR_PERSIST = 68, PMIX_STOR_ACCESS_TYPE = 69;
}
