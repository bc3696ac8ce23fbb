//! The extension's calls, where the plugin has it.

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

/// For the question whether there is an extension: a plugin that hangs here is told of, and has none.
const DESCRIBE: Duration = Duration::from_secs(10);
/// For a stream of notices to be answered at once.
const OPEN: Duration = Duration::from_secs(1);

impl Caller {
    /// Which parts of the extension the plugin has. One that does not know it, as all Go plugins, has none.
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

    /// What can be had, and at which price.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] where the plugin does not say; else [`CallError`].
    pub async fn offers(&self) -> Result<Vec<Offer>, CallError> {
        self.need(self.features().offers, "offers")?;
        let callable = self.caller()?;
        let caller = &callable.caller;
        let mut client = caller.connection.extension();
        let answer = caller.timed("Offers", caller.limits.update, client.offers(OffersRequest {})).await;
        let offers = self.heed(&callable, answer)?.into_inner().offers;
        Ok(offers.into_iter().map(Into::into).collect())
    }

    /// Interruptions and stock-outs, as they arise from now on. The stream ends with the plugin's process: ask again then. A
    /// plugin may keep its answer until it has something to tell: that is waited for while the stream is read, without a limit.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] where the plugin has none; [`CallError::Down`] where there is no process.
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
        // When it has answered it listens; one that keeps its answer has been asked by then.
        let whole = match tokio::time::timeout(OPEN, &mut opening).await {
            Ok(opened) => opened.left_stream(),
            Err(_) => futures::stream::once(opening).flatten().right_stream(),
        };
        // What a newer plugin tells beyond this host's words is no notice to it.
        let whole = whole.take_while(|message| std::future::ready(message.is_ok()));
        Ok(Box::pin(whole.filter_map(|message| std::future::ready(message.ok().and_then(Notice::from_wire)))))
    }

    /// What these instances use now. One that is missing in the answer could not be measured.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] where the plugin does not say; else [`CallError`].
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

    /// Fingerprints of the keys that an instance's SSH server may show; none where the plugin does not say.
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

    /// Before a job runs on an instance. A plugin without hooks has nothing to do.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's words: the job cannot run there, and that is no fault of its author.
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

    /// After a job ran on an instance, however it ended.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the plugin's words: the instance should not be used again.
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
