"""Consumer groups (KIP-848): the coordinator assigns, members reconcile at their own pace."""
