//! Calls of the protocol extension, for plugins that implement it.

use std::time::Duration;

use futures::{Stream, StreamExt};
use tonic::Code;

use super::call::{CallError, Caller, Ended};
use super::group::Group;
use crate::extension::{Notice, Offer, Resources};
use crate::model::Features;
use crate::model::InstanceId;
use crate::protocol::extension::{
    DescribeRequest, HookRequest, HostKeysRequest, NoticesRequest, OffersRequest, ResourcesRequest,
};

/// Timeout for asking a plugin for its features. A plugin that does not respond is used without the extension.
const DESCRIBE: Duration = Duration::from_secs(10);
/// Time that a plugin has to open the stream of notices before the call returns.
const OPEN: Duration = Duration::from_secs(1);

impl Caller {
    /// Returns the parts of the extension that the plugin has: none if it does not implement it, as all Go plugins.
    pub(super) async fn features(&self) -> Features {
        let mut client = self.connection.extension();
        match self.raw("Describe", DESCRIBE, client.describe(DescribeRequest {})).await {
            Ok(answer) => answer.into_inner().into(),
            Err(Ended::Status(status)) if status.code() == Code::Unimplemented => Features::default(),
            Err(error) => {
                let error = self.judge("Describe", error);
                tracing::warn!(plugin = self.plugin, %error, "the plugin's extension is not used");
                Features::default()
            }
        }
    }
}

impl Group {
    fn need(&self, has: bool, capability: &'static str) -> Result<(), CallError> {
        if has { Ok(()) } else { Err(CallError::NoCapability { plugin: self.name().to_owned(), capability }) }
    }

    /// Returns the offers of the provider with their prices.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin has no offers, or another [`CallError`].
    pub async fn offers(&self) -> Result<Vec<Offer>, CallError> {
        self.need(self.features().offers, "offers")?;
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let answer = caller.timed("Offers", caller.limits.update, client.offers(OffersRequest {})).await;
        let offers = self.heed(&callable, answer)?.into_inner().offers;
        Ok(offers.into_iter().map(Into::into).collect())
    }

    /// Returns a stream of interruptions and stock changes from now on. The stream ends with the plugin's process; call this again then. A
    /// plugin may delay its response until it has a notice. The stream waits for that response without a limit.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin has no notices, [`CallError::Down`] if no process is running.
    pub async fn notices(&self) -> Result<impl Stream<Item = Notice> + Send + Unpin + 'static, CallError> {
        self.need(self.features().notices, "notices")?;
        let callable = self.caller()?;
        let (plugin, mut client) = (self.name().to_owned(), callable.caller.connection.extension());
        let mut opening = Box::pin(async move {
            match client.notices(NoticesRequest {}).await {
                Ok(answer) => answer.into_inner().left_stream(),
                Err(status) => {
                    tracing::warn!(plugin, error = status.message(), "the plugin tells no notices");
                    futures::stream::empty().right_stream()
                }
            }
        });
        // After its response the plugin is listening. If it delays the response, it has received the request by now.
        let whole = match tokio::time::timeout(OPEN, &mut opening).await {
            Ok(opened) => opened.left_stream(),
            Err(_) => futures::stream::once(opening).flatten().right_stream(),
        };
        // Notices of a kind that this host does not know are dropped.
        let whole = whole.take_while(|message| std::future::ready(message.is_ok()));
        Ok(Box::pin(whole.filter_map(|message| std::future::ready(message.ok().and_then(Notice::from_wire)))))
    }

    /// Returns the current resource usage of these instances. An instance is missing if the plugin could not measure it.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin does not report usage, or another [`CallError`].
    pub async fn resources(&self, ids: &[InstanceId]) -> Result<Vec<Resources>, CallError> {
        self.need(self.features().resources, "resources")?;
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let request = ResourcesRequest { instances: ids.iter().map(|id| id.as_str().to_owned()).collect() };
        let answer = caller.timed("Resources", caller.limits.heartbeat, client.resources(request)).await;
        let resources = self.heed(&callable, answer)?.into_inner().resources;
        Ok(resources.into_iter().map(Resources::from).filter(|one| ids.contains(&one.instance)).collect())
    }

    /// Returns the fingerprints of an instance's SSH host keys. Empty if the plugin does not know them.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, CallError> {
        if !self.features().host_keys {
            return Ok(Vec::new());
        }
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let call = client.host_keys(HostKeysRequest { instance: id.as_str().to_owned() });
        let answer = caller.timed("HostKeys", caller.limits.connect_info, call).await;
        Ok(self.heed(&callable, answer)?.into_inner().fingerprints)
    }

    /// Runs the plugin's hook before a job starts on an instance. Does nothing if the plugin has no hooks.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's message. The job cannot run there, which is not its author's fault.
    pub async fn prepare(&self, id: &InstanceId, job: &str) -> Result<(), CallError> {
        if !self.features().hooks {
            return Ok(());
        }
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let call = client.prepare(HookRequest { instance: id.as_str().to_owned(), job: job.to_owned() });
        let answer = caller.timed("Prepare", caller.limits.change, call).await;
        self.heed(&callable, answer).map(drop)
    }

    /// Runs the plugin's hook after a job ended on an instance, whatever its result. Does nothing if the plugin has no hooks.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's message. The instance should not be used again.
    pub async fn finish(&self, id: &InstanceId, job: &str) -> Result<(), CallError> {
        if !self.features().hooks {
            return Ok(());
        }
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let call = client.finish(HookRequest { instance: id.as_str().to_owned(), job: job.to_owned() });
        let answer = caller.timed("Finish", caller.limits.change, call).await;
        self.heed(&callable, answer).map(drop)
    }
}
