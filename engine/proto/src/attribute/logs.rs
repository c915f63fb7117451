//! The attributes of log requests: channels, directives, and the fields of an email.

attributes! {
    /// A message for the stdout of its source, which tools read as a stream of its own.
    ///
    /// Data of a log request (string): the message, for the stdout of its source. Tools receive it
    /// with IOF_LOGGED.
    PMIX_LOG_STDOUT = "pmix.log.stdout": Text, at LogChannel;
    /// A message for the stderr of its source, which tools read as a stream of its own.
    ///
    /// Data of a log request (string): the message, for the stderr of its source. Tools receive it
    /// with IOF_LOGGED.
    PMIX_LOG_STDERR = "pmix.log.stderr": Text, at LogChannel;
    /// A message for the global syslog if there is one, otherwise for the local one.
    ///
    /// Data of a log request (string): the message, for the global syslog if there is one,
    /// otherwise for the local one.
    PMIX_LOG_SYSLOG = "pmix.log.syslog": Text, at LogChannel;
    /// A message for the syslog of the engine's node.
    ///
    /// Data of a log request (string): the message, for the syslog of the engine's node.
    PMIX_LOG_LOCAL_SYSLOG = "pmix.log.lsys": Text, at LogChannel;
    /// A message for the syslog of the gateway's node.
    ///
    /// Data of a log request (string): the message, for the syslog of the gateway's node.
    PMIX_LOG_GLOBAL_SYSLOG = "pmix.log.gsys": Text, at LogChannel;
    /// An email.
    ///
    /// Data of a log request (array of infos with the keys IOF_LOG_EMAIL_ADDR and following): an
    /// email. An engine sends it only if it was built with the feature mail, or has a gateway that
    /// was.
    PMIX_LOG_EMAIL = "pmix.log.email": Email, at LogChannel;
    /// A message for the engine's job record, which is a file.
    ///
    /// Data of a log request (string): the message, for the engine's job record, which is a file.
    PMIX_LOG_JOB_RECORD = "pmix.log.jrec": Text, at LogChannel;
    /// A message for the global data store, which the host serves.
    ///
    /// Data of a log request (string): the message, for the global data store, which the callback
    /// log of the launcher serves.
    PMIX_LOG_GLOBAL_DATASTORE = "pmix.log.gstore": Text, at LogChannel;
    /// A message for the channels of the engine's order.
    ///
    /// Data of a log request (byte object or string): the message, for the default channels of the
    /// engine (docs/src/logging.md).
    PMIX_LOG_MSG = "pmix.log.msg": Text, at LogChannel;

    /// The priority in the syslog, 0 (emergency) to 7 (debug), 6 (info) by default.
    ///
    /// Directive of a log request (int): the syslog priority, 0 (emergency) to 7 (debug), 6 (info)
    /// by default.
    PMIX_LOG_SYSLOG_PRI = "pmix.log.syspri": Number from 0 to 7, at LogDirective;
    /// The time of the event, in seconds since 1970.
    ///
    /// Directive of a log request (time): the time of the event, in seconds since 1970.
    PMIX_LOG_TIMESTAMP = "pmix.log.tstmp": Number from 0 to 253402207200, at LogDirective;
    /// Adds the time at which the request arrived.
    ///
    /// Directive of a log request (bool): adds the time at which the request arrived.
    PMIX_LOG_GENERATE_TIMESTAMP = "pmix.log.gtstmp": Bool, at LogDirective;
    /// Tags the message with its process and channel on stdout and stderr.
    ///
    /// Directive of a log request (bool): tags the message with its process and channel on stdout
    /// and stderr.
    PMIX_LOG_TAG_OUTPUT = "pmix.log.tag": Bool, at LogDirective;
    /// Adds the time to the message.
    ///
    /// Directive of a log request (bool): adds the time to the message.
    PMIX_LOG_TIMESTAMP_OUTPUT = "pmix.log.tsout": Bool, at LogDirective;
    /// Writes XML on stdout and stderr.
    ///
    /// Directive of a log request (bool): writes the message as XML on stdout and stderr.
    PMIX_LOG_XML_OUTPUT = "pmix.log.xml": Bool, at LogDirective;
    /// Stops at the first channel that accepts the message.
    ///
    /// Directive of a log request (bool): stops at the first channel that accepts the message.
    /// iof_server_init: does so for all messages.
    PMIX_LOG_ONCE = "pmix.log.once": Bool, at LogDirective ServerInit;
    /// The process or job from which the message comes. The engine must know the job.
    ///
    /// Directive of a log request (proc): the process or job from which the message comes. The
    /// engine must know the job.
    PMIX_LOG_SOURCE = "pmix.log.source": Process, at LogDirective;
    /// Marks a request that another engine relays to the gateway, and names its original tool. A
    /// gateway does not relay it again.
    ///
    /// Directive of a log request (string): marks a request that another engine relays to the
    /// gateway, and names its original tool. A gateway does not relay it again. An extension of
    /// iof.
    IOF_LOG_RELAYED = "iof.log.relayed": Text, at LogDirective;

    /// The recipients of an email, as addresses separated by commas.
    ///
    /// In an email (string): the recipients, separated by commas.
    PMIX_LOG_EMAIL_ADDR = "pmix.log.emaddr": Text, at LogDirective Email;
    /// The address of an email's sender.
    ///
    /// In an email (string): the sender's address.
    PMIX_LOG_EMAIL_SENDER_ADDR = "pmix.log.emfaddr": Text, at LogDirective Email;
    /// The subject of an email.
    ///
    /// In an email (string): the subject.
    PMIX_LOG_EMAIL_SUBJECT = "pmix.log.emsub": Text, at LogDirective Email;
    /// The message of an email.
    ///
    /// In an email (string): the message.
    PMIX_LOG_EMAIL_MSG = "pmix.log.emmsg": Text, at Email;
    /// The name or address of the mail server.
    ///
    /// In an email (string): the name or address of the mail server.
    PMIX_LOG_EMAIL_SERVER = "pmix.log.esrvr": Text, at LogDirective Email;
    /// The port of the mail server.
    ///
    /// In an email (int32): the port of the mail server.
    PMIX_LOG_EMAIL_SRVR_PORT = "pmix.log.esrvrprt": Number from 1 to 65535, at LogDirective Email;
}
