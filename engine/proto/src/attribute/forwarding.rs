//! The attributes of I/O forwarding.

attributes! {
    /// The size of the cache of each stream, or of the inlet of a push, in bytes.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the size of
    /// the cache of each stream, in bytes. 1 MiB by default, at least 16 KiB, in iof_IOF_pull at
    /// most 16 MiB. iof_IOF_push: the size of the shared memory through which the bytes are pushed.
    PMIX_IOF_CACHE_SIZE = "pmix.iof.csize": Number from 1 to 4294967295, at Server Spawn Pull Push;
    /// Drops the oldest bytes when the cache is full.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (bool): overwrites the
    /// oldest bytes when the cache is full.
    PMIX_IOF_DROP_OLDEST = "pmix.iof.old": Bool, at Server Spawn Pull;
    /// Drops new bytes when the cache is full. In a push: closes the stdin of processes that do not
    /// read, instead of waiting for them.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (bool): drops new bytes
    /// when the cache is full. iof_IOF_push: closes the stdin of a target that reads nothing for a
    /// second, instead of waiting for it.
    PMIX_IOF_DROP_NEWEST = "pmix.iof.new": Bool, at Server Spawn Pull Push;
    /// The number of bytes to collect before they are delivered together.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the number of
    /// bytes to collect before they are delivered together. With 0, the default, only
    /// IOF_IOF_BUFFERING_TIME limits the number.
    PMIX_IOF_BUFFERING_SIZE = "pmix.iof.bsize": Number from 0 to 4294967295, at Server Spawn Pull;
    /// The longest time for which bytes are collected, in seconds.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint32): the longest
    /// time for which bytes are collected, in seconds. 0 delivers bytes as they arrive. By default
    /// there is no limit if IOF_IOF_BUFFERING_SIZE is above 0; otherwise bytes are delivered as
    /// they arrive.
    PMIX_IOF_BUFFERING_TIME = "pmix.iof.btime": Number, at Server Spawn Pull;
    /// The longest time for which bytes are collected, in microseconds. Takes precedence over the
    /// time in seconds.
    ///
    /// iof_server_init, iof_server_spawn, iof_server_adopt and iof_IOF_pull (uint64): the same as
    /// IOF_IOF_BUFFERING_TIME, in microseconds. Takes precedence over the time in seconds. An
    /// extension of iof.
    IOF_BUFFERING_TIME_US = "iof.btime.us": Number, at Server Spawn Pull;
    /// Ends the stream after the delivered bytes. In a push: closes the stdin of the processes
    /// after the last byte. With output, or in an answer: the stream is complete.
    ///
    /// iof_IOF_push (bool): closes the stdin of the targets after these bytes.
    /// iof_server_IOF_deliver: ends the stream after these bytes. In a payload, which is then
    /// empty: the stream is complete.
    PMIX_IOF_COMPLETE = "pmix.iof.cmp": Bool, at Push Deliver Output Answer;
    /// Accepted without effect: a registration always receives a copy of the output.
    ///
    /// iof_IOF_pull (bool): accepted without effect. The registration receives a copy of the output
    /// in any case.
    PMIX_IOF_COPY = "pmix.iof.cpy": Bool, at Pull;
    /// Delivers the output to the registration in place of the launcher's own readers. True is not
    /// supported: a tool takes no output from other readers.
    ///
    /// iof_IOF_pull (bool): the registration receives the output in place of the launcher's own
    /// readers. True is refused with IOF_ERR_NOT_SUPPORTED if it is required, and otherwise
    /// ignored.
    PMIX_IOF_REDIRECT = "pmix.iof.redir": Bool, at Pull;
    /// Makes the tool's C library read the tool's own stdin and push it. If the value is a process, it
    /// is the target of a push that names none.
    ///
    /// iof_IOF_push (bool or proc): the library reads the program's own stdin and pushes it. A
    /// process counts as true, and is the target if the function is given none.
    PMIX_IOF_PUSH_STDIN = "pmix.iof.stdin": Bool or Process, at Push;
    /// The channels to forward, as a bit mask. This older form, from the RFC's draft, sets all
    /// `PMIX_FWD_` keys together.
    ///
    /// iof_server_spawn and iof_server_adopt (uint16): the channels to forward, as a bit mask. This
    /// older form sets IOF_FWD_STDIN, IOF_FWD_STDOUT, IOF_FWD_STDERR and IOF_FWD_STDDIAG together.
    PMIX_IOF_SRV_REQ = "pmix.iof.req": Number from 0 to 255, at Spawn;
    /// Makes the engine the site's gateway, which serves requests that other engines cannot
    /// (RFC0032).
    ///
    /// iof_server_init (bool): makes the engine the gateway of the site, which logs messages for
    /// other engines.
    PMIX_SERVER_GATEWAY = "pmix.srv.gway": Bool, at Server;
    /// Gives rank 0 a stdin to which tools can push.
    ///
    /// iof_server_spawn (bool): the stdin of rank 0 is a pipe that iof_IOF_push fills, unless
    /// IOF_STDIN_TGT or IOF_STDIN_INHERIT selects rank 0. For a program: the same for its first
    /// rank.
    PMIX_FWD_STDIN = "pmix.fwd.stdin": Bool, at Spawn Program;
    /// Forwards stdout to the launcher's own readers; other tools can pull it anyway.
    ///
    /// iof_server_spawn and iof_server_adopt (bool): whether the server's own registrations receive
    /// stdout. Tools can pull it in any case. If none of IOF_FWD_STDOUT, IOF_FWD_STDERR and
    /// IOF_FWD_STDDIAG is given, the server's registrations receive all three channels, otherwise
    /// only those that are true. If it is true and no registration reads the channel yet, a rank
    /// waits when the cache is full, unless IOF_DROP_NONE is false.
    PMIX_FWD_STDOUT = "pmix.fwd.stdout": Bool, at Spawn;
    /// Forwards stderr to the launcher's own readers; other tools can pull it anyway.
    ///
    /// iof_server_spawn and iof_server_adopt (bool): the same as IOF_FWD_STDOUT, for stderr.
    PMIX_FWD_STDERR = "pmix.fwd.stderr": Bool, at Spawn;
    /// Forwards stddiag to the launcher's own readers; other tools can pull it anyway.
    ///
    /// iof_server_spawn and iof_server_adopt (bool): the same as IOF_FWD_STDOUT, for stddiag.
    PMIX_FWD_STDDIAG = "pmix.fwd.stddiag": Bool, at Spawn;
    /// Leaves processes whose stdin is not open out of a push, instead of failing the push.
    ///
    /// iof_IOF_push (bool): excludes targets whose stdin cannot be pushed to, instead of failing.
    /// An extension of iof.
    IOF_PARTIAL = "iof.push.partial": Bool, at Push;
    /// The time at which the first of the bytes was read from their source, in nanoseconds since
    /// 1970.
    ///
    /// In a payload, and for iof_server_IOF_deliver (uint64): the time at which the first byte was
    /// read from its source, in nanoseconds since 1970. An extension of iof.
    IOF_READ_TIME = "iof.time": Number, at Deliver Output;
    /// The number of bytes of the stream before these, including missing ones. In a delivery: the
    /// bytes between the last delivery and this offset are missing.
    ///
    /// In a payload (uint64): the number of bytes of the stream before the payload, including
    /// missing ones. For iof_server_IOF_deliver: the bytes between the last delivery and this
    /// offset are missing. An extension of iof.
    IOF_OFFSET = "iof.offset": Number, at Deliver Output;
    /// The stream ends although its source may have written more: the source's node was lost, or the
    /// output was not read to its end. The value is the number of further bytes that the source has
    /// written, at least.
    ///
    /// In a payload, which is then empty, and for iof_server_IOF_deliver (uint64): the stream ends
    /// although its source may have written more: the node of the source was lost, or the output was
    /// not read to its end. The value is the number of further bytes that the source has written, at
    /// least. An extension of iof.
    IOF_BROKEN = "iof.broken": Number, at Deliver Output Answer;
}
