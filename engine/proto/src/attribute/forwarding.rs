//! The attributes of I/O forwarding.

attributes! {
    /// The size of the cache of each stream, or of the inlet of a push, in bytes.
    PMIX_IOF_CACHE_SIZE = "pmix.iof.csize": Number from 1 to 4294967295, at Server Spawn Pull Push;
    /// Drops the oldest bytes when the cache is full.
    PMIX_IOF_DROP_OLDEST = "pmix.iof.old": Bool, at Server Spawn Pull;
    /// Drops new bytes when the cache is full. In a push: closes the stdin of processes that do not
    /// read, instead of waiting for them.
    PMIX_IOF_DROP_NEWEST = "pmix.iof.new": Bool, at Server Spawn Pull Push;
    /// The number of bytes to collect before they are delivered together.
    PMIX_IOF_BUFFERING_SIZE = "pmix.iof.bsize": Number from 0 to 4294967295, at Server Spawn Pull;
    /// The longest time for which bytes are collected, in seconds.
    PMIX_IOF_BUFFERING_TIME = "pmix.iof.btime": Number, at Server Spawn Pull;
    /// The longest time for which bytes are collected, in microseconds. Takes precedence over the
    /// time in seconds.
    IOF_BUFFERING_TIME_US = "iof.btime.us": Number, at Server Spawn Pull;
    /// Ends the stream after the delivered bytes. In a push: closes the stdin of the processes
    /// after the last byte. With output, or in an answer: the stream is complete.
    PMIX_IOF_COMPLETE = "pmix.iof.cmp": Bool, at Push Deliver Output Answer;
    /// Accepted without effect: a registration always receives a copy of the output.
    PMIX_IOF_COPY = "pmix.iof.cpy": Bool, at Pull;
    /// Whether the registration receives the output in place of the launcher's own readers. True is
    /// not supported: a tool takes no output from other readers.
    PMIX_IOF_REDIRECT = "pmix.iof.redir": Bool, at Pull;
    /// Makes the tool's C library read the tool's own stdin and push it. If the value is a process, it
    /// is the target of a push that names none.
    PMIX_IOF_PUSH_STDIN = "pmix.iof.stdin": Bool or Process, at Push;
    /// The channels to forward, as a bit mask. This older form, from the RFC's draft, sets all
    /// `PMIX_FWD_` keys together.
    PMIX_IOF_SRV_REQ = "pmix.iof.req": Number from 0 to 255, at Spawn;
    /// Makes the engine the site's gateway, which serves requests that other engines cannot
    /// (RFC0032).
    PMIX_SERVER_GATEWAY = "pmix.srv.gway": Bool, at Server;
    /// Whether rank 0 has a stdin to which tools can push.
    PMIX_FWD_STDIN = "pmix.fwd.stdin": Bool, at Spawn Program;
    /// Whether the launcher's own readers receive stdout; other tools can pull it anyway.
    PMIX_FWD_STDOUT = "pmix.fwd.stdout": Bool, at Spawn;
    /// Whether the launcher's own readers receive stderr; other tools can pull it anyway.
    PMIX_FWD_STDERR = "pmix.fwd.stderr": Bool, at Spawn;
    /// Whether the launcher's own readers receive stddiag; other tools can pull it anyway.
    PMIX_FWD_STDDIAG = "pmix.fwd.stddiag": Bool, at Spawn;
    /// Leaves processes whose stdin is not open out of a push, instead of failing the push.
    IOF_PARTIAL = "iof.push.partial": Bool, at Push;
    /// The time at which the first of the bytes was read from their source, in nanoseconds since
    /// 1970.
    IOF_READ_TIME = "iof.time": Number, at Deliver Output;
    /// The number of bytes of the stream before these, including missing ones. In a delivery: the
    /// bytes between the last delivery and this offset are missing.
    IOF_OFFSET = "iof.offset": Number, at Deliver Output;
    /// The stream ends although its source may have written more, because the source's node was
    /// lost. The value is the number of further bytes that the source has written, at least.
    IOF_BROKEN = "iof.broken": Number, at Deliver Output Answer;
}
