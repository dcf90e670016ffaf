"""What keeps claims of a model back beside the switch: limits that its handler names, or that its Switch row stores.

``model_limits`` says what holds and what it means, ``grant`` counts it for one claim;
``key_limits`` and ``serial`` choose rows by a column.
"""
