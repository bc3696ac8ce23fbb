//! Calls of the protocol that a program can implement.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Init,
    Update,
    Increase,
    Decrease,
    ConnectInfo,
    Heartbeat,
    Suspend,
    Resume,
    Shutdown,
}

impl Call {
    pub(crate) const ALL: [Self; 9] = [
        Self::Init,
        Self::Update,
        Self::Increase,
        Self::Decrease,
        Self::ConnectInfo,
        Self::Heartbeat,
        Self::Suspend,
        Self::Resume,
        Self::Shutdown,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Update => "update",
            Self::Increase => "increase",
            Self::Decrease => "decrease",
            Self::ConnectInfo => "connect-info",
            Self::Heartbeat => "heartbeat",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Shutdown => "shutdown",
        }
    }
}
