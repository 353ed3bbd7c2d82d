"""Every error of the library.

StepwellError
├── UsageError (also RuntimeError)             the call itself is wrong here
│   ├── WrongLoop                              a storage used from a loop that did not open it
│   ├── AlreadyHeld                            a task claims a key that it, or its parent task, holds
│   ├── ContextClosed                          a context used after its block
│   └── InsideLoop                             a sync entry point called where it would block a loop
├── InvalidKey (also TypeError, ValueError)    a key or a name that cannot be an address
├── InvalidOption (also ValueError)            an unknown option, or a value that it cannot have
├── UnknownScheme (also ValueError)            a URL that no installed backend claims
├── MissingExtra (also ImportError)            an optional package is not installed
├── ExtraTooOld (also ImportError)             an optional package is installed, but too old
├── Unsupported (also NotImplementedError)     this backend does not have that optional protocol
├── EncodeError (also TypeError, ValueError)   a value that cannot be kept, with its path and type
│   └── Unstorable                             what a node of a durable run left behind cannot be kept
├── TooLarge (also ValueError)                 a key, value or record beyond its limit
├── StoredDataError                            what is stored cannot be given back
│   ├── CorruptRecord                          bytes changed under us: checksum, syntax or limits
│   │   └── RunReplaced                        the state of a run was replaced from outside; nobody can go on with it
│   ├── UnknownType                            a stored type that nothing here has registered
│   ├── DamagedStorage                         the store's own structure is broken, beyond one record
│   └── NewerSchema                            written by a newer release
├── Conflict                                   somebody else was there first
│   ├── Busy (also TimeoutError)               the key stayed claimed for as long as we would wait
│   │   └── RunBusy                            the run is still being run elsewhere
│   ├── LeaseLost                              the claim ran out; nothing was written
│   ├── RecordReplaced                         cleared or replaced under the holder; nothing was written
│   └── VersionChanged                         not the version that was shown; nothing was written
├── InvalidFlow (also TypeError, ValueError)   a flow that cannot work, found when it is defined
├── TransitionError (also ValueError)          a move that the flow does not declare
├── MigrationError (also ValueError)           a record that its flow's migrate() cannot bring to this revision
├── UnknownFlowError (also LookupError)        a flow that is not registered here
├── UnknownStateError (also LookupError)       a stored state that is no longer declared
├── NoKeyError (also LookupError)              a change where the update has no key
├── DuplicateUpdate                            this update was handled before
├── FieldError (also TypeError, ValueError)    a data field that its flow's data type does not allow
├── IncompleteData (also ValueError)           data that does not make up the type asked for
├── StorageError
│   ├── StorageUnavailable (also ConnectionError)   not reached; nothing was written
│   ├── OutcomeUnknown (also ConnectionError)       sent, never answered: it may be applied
│   │   └── NotReplicated                           applied, but on no replica yet: a failover may lose it
│   ├── StorageFull (also OSError)                  no room; nothing was written
│   ├── NotCopied                                   after a copy, source and target differ
│   └── StorageClosed                               closed while this was under way
└── NodeFlowError                              a node flow, or what one of its nodes gave
    ├── InvalidGraph (also ValueError)              the graph cannot be run; nothing has run
    ├── InvalidAction (also TypeError)              post returned something that is no action
    ├── UnknownAction (also LookupError)            a named action without an edge
    ├── InvalidItems (also TypeError)               a batch's prep returned no collection of items
    ├── NodeTimeout (also TimeoutError)             one attempt of an exec took too long
    ├── TooManySteps (also RuntimeError)            more nodes visited than max_steps
    ├── MergeConflict (also ValueError)             two branches changed one field
    ├── WorkCancelled (also RuntimeError)           a node, item or branch was cancelled from inside
    ├── KeptError                                   an error that was kept with a run
    ├── ExecutorError (also RuntimeError)           a value cannot travel to an executor or back
    ├── Parked                                      a run waits: for an answer, or for its time
    ├── RunExists (also ValueError)                 a run of this id exists already
    ├── UnknownRun (also LookupError)               no run of this id exists
    ├── RunFinished (also RuntimeError)             the run has ended; there is nothing to answer or resume
    └── FlowChanged (also ValueError)               the run was begun with another graph
"""

from stepwell.errors.base import (
    AlreadyHeld,
    ExtraTooOld,
    InsideLoop,
    InvalidOption,
    MissingExtra,
    StepwellError,
    Unsupported,
    UsageError,
    WrongLoop,
)
from stepwell.errors.fsm import (
    ContextClosed,
    DuplicateUpdate,
    FieldError,
    IncompleteData,
    InvalidFlow,
    MigrationError,
    NoKeyError,
    TransitionError,
    UnknownFlowError,
    UnknownStateError,
)
from stepwell.errors.nodes import (
    ExecutorError,
    FlowChanged,
    InvalidAction,
    InvalidGraph,
    InvalidItems,
    KeptError,
    MergeConflict,
    NodeFlowError,
    NodeTimeout,
    Parked,
    RunBusy,
    RunExists,
    RunFinished,
    RunReplaced,
    TooManySteps,
    UnknownAction,
    UnknownRun,
    Unstorable,
    WorkCancelled,
)
from stepwell.errors.storage import (
    Busy,
    Conflict,
    CorruptRecord,
    DamagedStorage,
    EncodeError,
    InvalidKey,
    LeaseLost,
    NewerSchema,
    NotCopied,
    NotReplicated,
    OutcomeUnknown,
    RecordReplaced,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageUnavailable,
    StoredDataError,
    TooLarge,
    UnknownScheme,
    UnknownType,
    VersionChanged,
)

__all__ = [
    "AlreadyHeld",
    "Busy",
    "Conflict",
    "ContextClosed",
    "CorruptRecord",
    "DamagedStorage",
    "DuplicateUpdate",
    "EncodeError",
    "ExecutorError",
    "ExtraTooOld",
    "FieldError",
    "FlowChanged",
    "IncompleteData",
    "InsideLoop",
    "InvalidAction",
    "InvalidFlow",
    "InvalidGraph",
    "InvalidItems",
    "InvalidKey",
    "InvalidOption",
    "KeptError",
    "LeaseLost",
    "MergeConflict",
    "MigrationError",
    "MissingExtra",
    "NewerSchema",
    "NoKeyError",
    "NodeFlowError",
    "NodeTimeout",
    "NotCopied",
    "NotReplicated",
    "OutcomeUnknown",
    "Parked",
    "RecordReplaced",
    "RunBusy",
    "RunExists",
    "RunFinished",
    "RunReplaced",
    "StepwellError",
    "StorageClosed",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "StoredDataError",
    "TooLarge",
    "TooManySteps",
    "TransitionError",
    "UnknownAction",
    "UnknownFlowError",
    "UnknownRun",
    "UnknownScheme",
    "UnknownStateError",
    "UnknownType",
    "Unstorable",
    "Unsupported",
    "UsageError",
    "VersionChanged",
    "WorkCancelled",
    "WrongLoop",
]
