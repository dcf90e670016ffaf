"""What keeps claims of a model back beside the switch: limits that its handler names, or that its Switch row stores.

``model_limits`` has rate, running rows and hours; ``key_limits`` chooses rows by a column.
"""
