// Package azure has the names alone that the resolver writes: build.sh leaves out who reads them.
package azure

const (
	ServicePrincipalAuthKey                      = "leftOut"
	ServicePrincipalTenantIDKey                  = "leftOut.tenantId"
	ServicePrincipalClientIDKey                  = "leftOut.clientId"
	ServicePrincipalCloudKey                     = "leftOut.cloud"
	ServicePrincipalActiveDirectoryEndpointKey   = "leftOut.activeDirectoryEndpoint"
	ServicePrincipalClientSecretKey              = "leftOut.clientSecret"
	ServicePrincipalClientCertificateKey         = "leftOut.clientCertificate"
	ServicePrincipalClientCertificatePasswordKey = "leftOut.clientCertificatePassword"
)
