"""The benchmark of training: an update beside other packages', and its gradients."""
