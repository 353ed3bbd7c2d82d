"""Every error of the library.

    StepwellError
    ├── UsageError (also RuntimeError)             the call itself is wrong here
    │   ├── WrongLoop                              a storage used from a loop that did not open it
    │   ├── AlreadyHeld                            a task claims a key that it holds already
    │   └── InsideLoop                             a sync entry point called where it would block a loop
    ├── InvalidKey (also TypeError, ValueError)    a key or a name that cannot be an address
    ├── InvalidOption (also ValueError)            an unknown option, or a value that it cannot have
    ├── UnknownScheme (also ValueError)            a URL that no installed backend claims
    ├── MissingExtra (also ImportError)            an optional package is not installed
    ├── Unsupported (also NotImplementedError)     this backend does not have that optional protocol
    ├── EncodeError (also TypeError, ValueError)   a value that cannot be kept, with its path and type
    ├── TooLarge (also ValueError)                 a key, value or record beyond its limit
    ├── StoredDataError                            what is stored cannot be given back
    │   ├── CorruptRecord                          bytes changed under us: checksum, syntax or limits
    │   ├── UnknownType                            a stored type that nothing here has registered
    │   └── NewerSchema                            written by a newer release
    ├── Conflict                                   somebody else was there first
    │   ├── Busy (also TimeoutError)               the key stayed claimed for as long as we would wait
    │   ├── LeaseLost                              the claim ran out; nothing was written
    │   ├── RecordReplaced                         cleared or replaced under the holder; nothing was written
    │   └── VersionChanged                         not the version that was shown; nothing was written
    └── StorageError
        ├── StorageUnavailable (also ConnectionError)   not reached; nothing was written
        ├── OutcomeUnknown (also ConnectionError)       sent, never answered: it may be applied
        ├── StorageFull (also OSError)                  no room; nothing was written
        └── StorageClosed                               used after close()
"""

from __future__ import annotations


class StepwellError(Exception):
    """Everything that the library raises on purpose."""
