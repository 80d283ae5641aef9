//! Credentials of cloud accounts: AWS for Amazon Bedrock, Google for Vertex AI, Microsoft Entra for Azure.

pub mod aws;
pub mod entra;
pub mod google;
mod tokens;
